"""Ask a SpecExit server with the OpenAI client: a contract, a policy, and the record.

specexit serve TARGET --head HEAD
python docs/examples/openai_server.py --url http://localhost:8000/v1
"""

from __future__ import annotations

import argparse

import openai


def main() -> None:
    """Ask once with everything on, and once as stock vLLM would answer."""
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--url", default="http://localhost:8000/v1")
    p.add_argument("--question", default="What is 17 + 25 - 9? Put the answer in a box.")
    p.add_argument("--contract", default="boxed_integer")
    p.add_argument("--max-tokens", type=int, default=1024)
    args = p.parse_args()

    client = openai.OpenAI(base_url=args.url, api_key="none")
    model = client.models.list().data[0].id
    for xargs in ({"contract": args.contract}, {"specexit": "off"}):
        reply = client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": args.question}],
            max_tokens=args.max_tokens,
            temperature=0,
            extra_body={"vllm_xargs": xargs},
        )
        choice = reply.choices[0]
        record = (getattr(reply, "kv_transfer_params", None) or {}).get("specexit", {})
        print(f"{xargs}")
        print(f"  answer:  {(choice.message.content or '').strip()!r}")
        print(f"  tokens:  {reply.usage.completion_tokens if reply.usage else '?'}")
        print(f"  ended:   {choice.stop_reason or choice.finish_reason}")
        print(
            f"  thought: {record.get('think_tokens', '?')} tokens, {record.get('exit', 'no exit')}"
        )


if __name__ == "__main__":
    main()
