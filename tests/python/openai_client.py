#!/usr/bin/env python3
"""Talk to a running crit server with the official OpenAI client and print what it saw as JSON.

usage: openai_client.py BASE_URL [--model ID] [--prompt TEXT] [--expect TEXT] [--max-tokens N]

BASE_URL is the server's, without /v1. Needs the package `openai`. Every check is one entry of `checks`; the exit status
is 1 if any of them failed. Retries are off, so that an error is seen as it came.
"""

import argparse
import json
import sys

import openai


def accumulate(stream):
    """What a client gets from a stream: text, finish reasons, usage, and how the frames looked."""
    seen = {"text": "", "roles": [], "finishes": [], "usage": None, "ids": set(), "chunks": 0}
    for chunk in stream:
        seen["chunks"] += 1
        seen["ids"].add(chunk.id)
        if chunk.usage is not None:
            seen["usage"] = chunk.usage.model_dump(exclude_none=True)
        for choice in chunk.choices:
            seen["text"] += choice.delta.content or ""
            if choice.delta.role:
                seen["roles"].append(choice.delta.role)
            if choice.finish_reason is not None:
                seen["finishes"].append(choice.finish_reason)
    seen["ids"] = sorted(seen["ids"])
    return seen


def error_of(call):
    """The error a call raises, as the client parsed it."""
    try:
        call()
    except openai.APIStatusError as error:
        body = error.body if isinstance(error.body, dict) else {}
        return {
            "class": type(error).__name__,
            "status": error.status_code,
            "code": error.code,
            "param": error.param,
            "type": error.type,
            "message": body.get("message"),
        }
    return None


def run(options):
    client = openai.OpenAI(base_url=options.base_url.rstrip("/") + "/v1", api_key="none", max_retries=0, timeout=120)
    checks = {}
    models = [model.id for model in client.models.list().data]
    checks["models_listed"] = len(models) > 0
    model = options.model or models[0]
    checks["model_retrieved"] = client.models.retrieve(model).id == model

    ask = {
        "model": model,
        "messages": [{"role": "user", "content": options.prompt}],
        "temperature": 0,
        "seed": 1,
        "max_tokens": options.max_tokens,
    }
    whole = client.chat.completions.create(**ask)
    text = whole.choices[0].message.content
    usage = whole.usage.model_dump(exclude_none=True)
    stream = accumulate(client.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True}))

    checks["streamed_text_equals_whole"] = stream["text"] == text
    checks["streamed_finish_equals_whole"] = stream["finishes"] == [whole.choices[0].finish_reason]
    # The second request may find the first one's prompt in the prefix cache.
    counts = lambda usage: {key: usage[key] for key in ("prompt_tokens", "completion_tokens", "total_tokens")}
    checks["streamed_usage_equals_whole"] = stream["usage"] is not None and counts(stream["usage"]) == counts(usage)
    checks["usage_adds_up"] = usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    checks["role_sent_once"] = stream["roles"] == ["assistant"]
    checks["id_constant"] = len(stream["ids"]) == 1
    if options.expect is not None:
        checks["text_as_expected"] = text == options.expect

    with client.chat.completions.stream(**ask) as helper:
        final = helper.get_final_completion()
    checks["sdk_accumulator_equals_whole"] = final.choices[0].message.content == text

    scored = client.chat.completions.create(**ask, logprobs=True, top_logprobs=2)
    content = scored.choices[0].logprobs.content or []
    joined = b"".join(bytes(entry.bytes) for entry in content)
    checks["logprob_bytes_spell_the_text"] = joined.decode("utf-8", "replace") == text
    checks["logprobs_are_log_probs"] = all(entry.logprob <= 0 and len(entry.top_logprobs) == 2 for entry in content)

    if len(text) > 2:
        stop = text[1:3]
        stopped = client.chat.completions.create(**ask, stop=[stop])
        checks["stop_string_ends_before_it"] = stopped.choices[0].message.content == text[: text.find(stop)]
        checks["stop_string_finish"] = stopped.choices[0].finish_reason == "stop"

    create = client.chat.completions.create
    errors = {
        "unknown_model": error_of(lambda: create(**{**ask, "model": "no/such-model"})),
        "wrong_type": error_of(lambda: create(**{**ask, "temperature": "hot"})),
        "wrong_message": error_of(lambda: create(**{**ask, "messages": [{"role": "wizard", "content": "x"}]})),
    }
    expected = {
        "unknown_model": ("NotFoundError", 404, "model"),
        "wrong_type": ("BadRequestError", 400, "temperature"),
        "wrong_message": ("BadRequestError", 400, "messages[0].role"),
    }
    for name, error in errors.items():
        parsed = error is not None and bool(error["message"])
        checks[f"error_{name}"] = parsed and (error["class"], error["status"], error["param"]) == expected[name]

    return {
        "openai": openai.__version__,
        "models": models,
        "text": text,
        "finish_reason": whole.choices[0].finish_reason,
        "usage": usage,
        "stream": stream,
        "errors": errors,
        "checks": checks,
        "ok": all(checks.values()),
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("base_url")
    parser.add_argument("--model")
    parser.add_argument("--prompt", default="Tell me about the sea.")
    parser.add_argument("--expect")
    parser.add_argument("--max-tokens", type=int, default=32)
    result = run(parser.parse_args())
    print(json.dumps(result, indent=1))
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
