"""Steps of LiteLLM: python litellm_steps.py STEP BASE_URL PROVIDER; prints one JSON object.

Runs in the client's own environment, so it imports nothing of this project.
"""

import json
import sys

import litellm

STEP, BASE, PROVIDER = sys.argv[1:4]
MESSAGES = [{"role": "user", "content": "What is the capital of France?"}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}


def ask(messages=MESSAGES, **fields):
    return litellm.completion(
        model=f"{PROVIDER}/local-model",
        messages=messages,
        api_base=BASE,
        api_key="local",
        num_retries=4 if STEP == "busy" else 0,
        **fields,
    )


def chat():
    answer = ask(temperature=0, max_tokens=30)
    choice = answer.choices[0]
    return {
        "text": choice.message.content,
        "reason": choice.finish_reason,
        "usage": answer.usage.total_tokens,
    }


def stream():
    text, chunks, reason = "", 0, None
    for chunk in ask(temperature=0, max_tokens=30, stream=True):
        chunks += 1
        text += chunk.choices[0].delta.content or ""
        reason = chunk.choices[0].finish_reason or reason
    return {"text": text, "chunks": chunks, "reason": reason}


def stop():
    answer = ask(temperature=0, max_tokens=30, stop=[" Paris"])
    return {"text": answer.choices[0].message.content, "reason": answer.choices[0].finish_reason}


def overflow():
    try:
        ask([{"role": "user", "content": "one two three " * 20000}], max_tokens=10)
    except litellm.ContextWindowExceededError as error:
        return {"error": "ContextWindowExceededError", "message": str(error)[:300]}
    except Exception as error:
        return {"error": type(error).__name__, "message": str(error)[:300]}
    return {}


def busy():
    return {"text": ask(max_tokens=30).choices[0].message.content}


def tools():
    messages = list(MESSAGES)
    answer = ask(messages, tools=[WEATHER]).choices[0].message
    messages.append(answer.model_dump(exclude_none=True))
    cities = []
    for call in answer.tool_calls or ():
        cities.append(json.loads(call.function.arguments)["city"])
        messages.append({"role": "tool", "tool_call_id": call.id, "content": "sunny"})
    return {"text": ask(messages, tools=[WEATHER]).choices[0].message.content, "cities": cities}


def forced():
    answer = ask(
        tools=[WEATHER],
        tool_choice="required",
        parallel_tool_calls=False,
        max_tokens=200,
        temperature=0,
    )
    call = answer.choices[0].message.tool_calls[0]
    return {
        "name": call.function.name,
        "arguments": call.function.arguments,
        "reason": answer.choices[0].finish_reason,
    }


print(json.dumps(globals()[STEP]()))
