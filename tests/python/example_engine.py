"""An engine in another language: the smallest program that speaks crit's engine protocol (docs/engine-protocol.md).

Its model is a bigram: the logits after a token depend on that token alone. It generates greedily and runs scoring
plans. It serves one connection at a time and answers one message after the other, which the protocol allows; a real
engine would batch. Standard library only.

Start it by naming it in engine.json: {"engine": {"command": ["python3", "example_engine.py"]}}
"""

import json
import math
import mmap
import os
import socket
import struct
import threading
import time

PROTOCOL = 1
VOCAB = 32
CONTEXT = 4096
MAX_FRAME_BYTES = 64 << 20


def logits(token):
    """The model."""
    return [((token * 7 + other * 13) % 29) / 4.0 for other in range(VOCAB)]


def log_probs(token):
    row = logits(token)
    total = math.log(sum(math.exp(x) for x in row))
    return [x - total for x in row]


class Refused(Exception):
    """A request that cannot be served; `kind` is one of usage, input, environment, engine."""

    def __init__(self, message, kind="input"):
        super().__init__(message)
        self.kind = kind


class Gone(Exception):
    """The client is gone."""


class Connection:
    """Frames: a little-endian u32 length and that many bytes of JSON."""

    def __init__(self, stream):
        self.stream = stream

    def read(self):
        (length,) = struct.unpack("<I", self._exactly(4))
        if length > MAX_FRAME_BYTES:
            raise Gone()
        return json.loads(self._exactly(length))

    def write(self, kind, **fields):
        body = json.dumps({"type": kind, **fields}).encode()
        try:
            self.stream.sendall(struct.pack("<I", len(body)) + body)
        except OSError as error:
            raise Gone() from error

    def error(self, request_id, error):
        self.write("error", id=request_id, error={"kind": error.kind, "message": str(error)})

    def _exactly(self, count):
        data = bytearray()
        while len(data) < count:
            part = self.stream.recv(count - len(data))
            if not part:
                raise Gone()
            data += part
        return bytes(data)


class Engine:
    def __init__(self):
        self.stats = {"generated_tokens": 0, "prompt_tokens": 0, "steps": 0}
        self.closing = False

    def serve(self, connection):
        """Answers messages until the connection ends or says `close`."""
        hello = connection.read()
        if hello.get("type") != "open" or hello.get("protocol") != PROTOCOL:
            connection.error(None, Refused(f"this engine speaks version {PROTOCOL}", "usage"))
            return
        connection.write("opened", protocol=PROTOCOL, engine="example 1")
        while not self.closing:
            message = connection.read()
            request_id = message.get("id")
            try:
                self.answer(connection, message.get("type"), request_id, message)
            except Refused as error:
                connection.error(request_id, error)
            except (KeyError, TypeError, ValueError, IndexError) as error:
                connection.error(request_id, Refused(f"malformed message: {error!r}", "usage"))

    def answer(self, connection, kind, request_id, message):
        if kind == "info":
            info = {"engine": "example 1", "arch": "bigram", "target": "cpu", "vocab": VOCAB}
            connection.write("info", id=request_id, info={**info, "max_context": CONTEXT, "max_batch": 1})
        elif kind == "stats":
            # Every counter this engine does not keep is 0.
            zero = ["waiting", "running", "cached_tokens", "drafted_tokens", "accepted_tokens", "preemptions"]
            zeros = dict.fromkeys([*zero, "blocks_used", "blocks"], 0)
            connection.write("stats", id=request_id, stats={**zeros, **self.stats, "passes": [], "op_times": []})
        elif kind == "submit":
            self.generate(connection, request_id, message)
        elif kind == "score":
            self.score(connection, request_id, message)
        elif kind in ("cancel", "score_ack"):
            pass  # Whatever it names has ended: this engine answers one message after the other.
        elif kind == "close":
            self.closing = True
            connection.write("closed")
        else:
            raise Refused(f"unknown message type {kind!r}", "usage")

    def generate(self, connection, request_id, message):
        sequence = check_ids(message["prompt"])
        if message.get("sampling", {}).get("temperature", 0) != 0:
            raise Refused("this engine is greedy only: set temperature to 0")
        prompt, started = len(sequence), time.monotonic()
        first, reason = None, "length"
        for _ in range(min(message["max_tokens"], CONTEXT - prompt)):
            row = log_probs(sequence[-1])
            ranked = sorted(range(VOCAB), key=lambda token: (-row[token], token))
            sequence.append(ranked[0])
            first = first or time.monotonic()
            extra = {}
            if message.get("top_logprobs") is not None:
                top = [[token, row[token]] for token in ranked[: message["top_logprobs"]]]
                extra["logprobs"] = [{"logprob": row[ranked[0]], "top": top}]
            connection.write("tokens", id=request_id, tokens=[ranked[0]], **extra)
            if ranked[0] in message.get("stop_ids", []):
                reason = "stop"
                break
        made = len(sequence) - prompt
        self.stats["prompt_tokens"] += prompt
        self.stats["generated_tokens"] += made
        self.stats["steps"] += made
        first = first or started
        connection.write(
            "finished",
            id=request_id,
            reason=reason,
            usage={
                "prompt_tokens": prompt,
                "cached_tokens": 0,
                "generated_tokens": made,
                "first_token_us": int((first - started) * 1e6),
                "decode_us": int((time.monotonic() - first) * 1e6),
            },
        )

    def score(self, connection, request_id, message):
        """Runs a plan: rows of a step go into free areas of the ring, each named in a `score_chunk`."""
        plan = message["plan"]
        check_plan(plan)
        slots, slot_bytes = message["slots"], message["slot_bytes"]
        rows_per_chunk = slot_bytes // (4 * VOCAB)
        if rows_per_chunk == 0:
            raise Refused("an area of the ring is smaller than a row", "usage")
        with open(message["ring"], "r+b") as file, mmap.mmap(file.fileno(), slots * slot_bytes) as ring:
            free, unread, chunk = list(range(slots)), {}, 0
            for rows in run_plan(plan):
                self.stats["steps"] += 1
                for start in range(0, len(rows), rows_per_chunk):
                    while not free:
                        ack = connection.read()
                        if ack["type"] == "cancel":
                            raise Refused("the score was cancelled", "engine")
                        if ack["type"] == "score_ack":
                            free.append(unread.pop(ack["chunk"]))
                    slot, part = free.pop(), rows[start : start + rows_per_chunk]
                    values = [x for _, _, token in part for x in log_probs(token)]
                    ring.seek(slot * slot_bytes)
                    ring.write(struct.pack(f"<{len(values)}f", *values))
                    names = [{"seq": seq, "position": position} for seq, position, _ in part]
                    connection.write("score_chunk", id=request_id, chunk=chunk, slot=slot, rows=names)
                    unread[chunk] = slot
                    chunk += 1
        connection.write("score_done", id=request_id, prefix_hits=[0] * len(plan["sequences"]))


def check_ids(ids):
    if not ids or any(not 0 <= token < VOCAB for token in ids) or len(ids) >= CONTEXT:
        raise Refused(f"ids must be 1 to {CONTEXT - 1} numbers below {VOCAB}")
    return list(ids)


def check_plan(plan):
    """A plan is refused as a whole before any of it runs."""
    ids = [check_ids(sequence["ids"]) for sequence in plan["sequences"]]
    at = [0] * len(ids)
    for step, items in enumerate(plan["steps"]):
        for item in items:
            seq, take, draft, accept = item["seq"], item["take"], item.get("draft", []), item.get("accept", 0)
            end = at[seq] + take
            if take < 1 or end > len(ids[seq]):
                raise Refused(f"step {step}: take is {take} and {len(ids[seq]) - at[seq]} ids are left")
            if accept > len(draft) or draft[:accept] != ids[seq][end : end + accept]:
                raise Refused(f"step {step}: accepted draft tokens are not the sequence's next ids")
            at[seq] = end + accept


def run_plan(plan):
    """Yields the rows of each step as (sequence, position, token whose successor the row is about).

    A model with state would run all items of a step as one batch, drafts included, and roll rejected drafts back.
    """
    at = [0] * len(plan["sequences"])
    for items in plan["steps"]:
        rows = []
        for item in items:
            seq = item["seq"]
            end = at[seq] + item["take"] + item.get("accept", 0)
            if item.get("rows", True):
                ids = plan["sequences"][seq]["ids"]
                rows += [(seq, position, ids[position]) for position in range(at[seq], end)]
            at[seq] = end
        yield rows


def exit_with_user():
    """An engine must not outlive the process it runs for."""
    user, parent = int(os.environ.get("CRIT_ENGINE_PARENT", "0")), os.getppid()
    if not user:
        return
    while os.getppid() == parent:
        try:
            os.kill(user, 0)
        except ProcessLookupError:
            break
        time.sleep(0.25)
    os._exit(0)


def main():
    threading.Thread(target=exit_with_user, daemon=True).start()
    engine = Engine()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.environ["CRIT_ENGINE_SOCKET"])
        listener.listen()
        while not engine.closing:
            stream, _ = listener.accept()
            with stream:
                try:
                    engine.serve(Connection(stream))
                except Gone:
                    pass


if __name__ == "__main__":
    main()
