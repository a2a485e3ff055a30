"""Runs the whole loop over MCP with the official Python SDK and prints what happened as JSON.

    python mcp_loop.py CRIT MODEL WORKSPACE [--plugins NAME,NAME] [--timeout SECONDS]

CRIT is the crit executable, MODEL a model file or folder, WORKSPACE an empty folder. Needs the package `mcp`.
"""

import argparse
import asyncio
import json
import sys
import time

from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client


class Loop:
    """Calls tools and follows their jobs."""

    def __init__(self, session, deadline):
        self.session = session
        self.deadline = deadline
        self.steps = []

    async def call(self, tool, **arguments):
        """Calls a tool; if it answers with a job, follows that to its end. Returns the tool's own output."""
        begun = time.monotonic()
        answer = await self.raw(tool, arguments)
        first_answer_s = time.monotonic() - begun
        polls = 0
        while answer.get("state") in ("queued", "running"):
            if time.monotonic() > self.deadline:
                sys.exit(f"{tool}: no result in time: {answer}")
            polls += 1
            status = await self.raw("job_status", {"job_id": answer["job_id"], "wait_s": 20})
            if status["job"]["state"] in ("failed", "cancelled"):
                sys.exit(f"{tool}: {status['error']}")
            answer = {"job_id": answer["job_id"], "state": status["job"]["state"], "result": status.get("result")}
        output = answer["result"] if "state" in answer and "job_id" in answer else answer
        took = {"tool": tool, "first_answer_s": round(first_answer_s, 2), "wall_s": round(time.monotonic() - begun, 1),
                "polls": polls}
        self.steps.append(took)
        print(json.dumps(took), file=sys.stderr)
        return output

    async def raw(self, tool, arguments):
        """One call; fails on an error answer, and if the text and the structured half differ."""
        result = await self.session.call_tool(tool, arguments)
        structured = getattr(result, "structuredContent", None) or getattr(result, "structured_content", None)
        failed = getattr(result, "isError", None) or getattr(result, "is_error", None)
        if failed:
            sys.exit(f"{tool} {arguments}: {result.content[0].text}")
        if json.loads(result.content[0].text) != structured:
            sys.exit(f"{tool}: text and structured content differ")
        return structured


async def run(args):
    server = StdioServerParameters(command=args.crit, args=["mcp", "--workspace", args.workspace])
    async with stdio_client(server) as (read, write), ClientSession(read, write) as session:
        hello = await session.initialize()
        tools = [tool.name for tool in (await session.list_tools()).tools]
        loop = Loop(session, time.monotonic() + args.timeout)
        recon = await loop.call("recon", model=args.model)
        found = await loop.call("inference_search", query="speculative decoding")
        candidates = []
        plans = [("base", "no plugins: the starting point", [])]
        plans.append(("plugins", "the plugins save passes", [{"name": name} for name in args.plugins.split(",") if name]))
        for name, hypothesis, plugins in plans:
            await loop.call("plan", hypothesis=hypothesis, plugins=plugins)
            built = await loop.call("build_candidate", name=name)
            smoke = await loop.call("smoke", candidate=built["candidate"])
            if not smoke["passed"]:
                sys.exit(f"{name} did not pass smoke: {smoke['cases']}")
            row = {"name": name, "candidate": built["candidate"]}
            if len(plugins) > 1:
                row["ablation"] = (await loop.call("ablate", candidate=built["candidate"]))["rows"]
            row["eval"] = await loop.call(
                "eval", candidate=built["candidate"], generate_tokens=32, repeats=2, quality_tokens=64
            )
            candidates.append(row)
        status = await loop.call("run_status")
        best = next(row for row in status["candidates"] if row["name"] == status["best"])
        seal = await loop.call("seal", candidate=best["candidate"])
        info = getattr(hello, "serverInfo", None) or getattr(hello, "server_info")
        return {
            "server": {"name": info.name, "version": info.version},
            "tools": tools,
            "fits": recon["memory"]["fits"],
            "found": [entry["name"] for entry in found["entries"]],
            "candidates": candidates,
            "best": status["best"],
            "seal": seal,
            "steps": loop.steps,
        }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("crit")
    parser.add_argument("model")
    parser.add_argument("workspace")
    parser.add_argument("--plugins", default="ngram_drafter,prefix_cache")
    parser.add_argument("--timeout", type=float, default=1800)
    print(json.dumps(asyncio.run(run(parser.parse_args())), indent=1))


if __name__ == "__main__":
    main()
