"""Many clients at once, of whom a third goes away in the middle."""

import asyncio
import random
import unittest

import httpx
import support

CLIENTS = 16
REQUESTS = 200
SEED = 20_250_101
PROMPTS = [
    "The sea is", "One plus one is", "Once upon a time", "The capital of France is", "My favourite colour is",
    "A good name for a dog is", "Rust is a language that", "In the morning I", "The largest planet is",
    "To make bread you need",
]


def body(prompt, count, is_streamed):
    return {"prompt": prompt, "temperature": 0, "max_tokens": count, "stream": is_streamed}


async def streamed_text(client, request):
    """The joined text of a streamed completion."""
    text, is_done = "", False
    async with client.stream("POST", "/v1/completions", json=request) as response:
        response.raise_for_status()
        async for line in response.aiter_lines():
            if line == "data: [DONE]":
                is_done = True
            elif line.startswith("data: "):
                chunk = httpx.Response(200, content=line[len("data: "):]).json()
                text += "".join(choice["text"] for choice in chunk["choices"])
    assert is_done, "the stream ended without [DONE]"
    return text


async def text_of(client, request):
    """The text of a completion, by either way."""
    if request["stream"]:
        return await streamed_text(client, request)
    response = await client.post("/v1/completions", json=request)
    response.raise_for_status()
    return response.json()["choices"][0]["text"]


class ManyClients(unittest.IsolatedAsyncioTestCase):
    async def test_whoever_stays_gets_the_right_text_and_everything_is_free_afterwards(self):
        numbers = random.Random(SEED)
        async with httpx.AsyncClient(base_url=support.URL, timeout=support.TIMEOUT_S) as client:
            alone = {
                (prompt, count): await text_of(client, body(prompt, count, False))
                for prompt in PROMPTS for count in (2, 8)
            }
        work = []
        for index in range(REQUESTS):
            request = body(numbers.choice(PROMPTS), numbers.choice((2, 8)), numbers.random() < 0.5)
            work.append((request, numbers.uniform(0, 1.5) if index % 3 == 0 else None))
        outcomes = {"right": 0, "cut": 0}

        async def one_client(mine):
            async with httpx.AsyncClient(base_url=support.URL, timeout=support.TIMEOUT_S) as client:
                for request, cut_after in mine:
                    if cut_after is None:
                        text = await text_of(client, request)
                    else:
                        try:
                            text = await asyncio.wait_for(text_of(client, request), cut_after)
                        except asyncio.TimeoutError:
                            outcomes["cut"] += 1
                            continue
                    self.assertEqual(text, alone[request["prompt"], request["max_tokens"]])
                    outcomes["right"] += 1

        await asyncio.gather(*(one_client(work[start::CLIENTS]) for start in range(CLIENTS)))
        self.assertEqual(outcomes["right"] + outcomes["cut"], REQUESTS)
        self.assertGreaterEqual(outcomes["right"], REQUESTS - (REQUESTS + 2) // 3)
        self.assertGreater(outcomes["cut"], 0)
        await asyncio.to_thread(support.check_all_free, self)


class LongPrompt(unittest.IsolatedAsyncioTestCase):
    async def test_health_answers_and_a_client_that_leaves_frees_its_lane_while_a_prompt_is_read(self):
        request = {"prompt": [1000 + at % 40_000 for at in range(2000)], "max_tokens": 1}
        async with httpx.AsyncClient(base_url=support.URL, timeout=support.TIMEOUT_S) as client:
            reply = asyncio.create_task(client.post("/v1/completions", json=request))
            await asyncio.to_thread(
                support.wait_until, lambda: support.metric("vllm:num_requests_running") == 1, "the prompt is read", 120)
            for _ in range(5):
                health = await asyncio.wait_for(client.get("/health"), 1)
                self.assertEqual(health.status_code, 200)
            self.assertFalse(reply.done())
            reply.cancel()
            await asyncio.gather(reply, return_exceptions=True)
        await asyncio.to_thread(support.check_all_free, self)

    async def test_more_requests_than_lanes_all_end(self):
        async with httpx.AsyncClient(base_url=support.URL, timeout=support.TIMEOUT_S) as client:
            requests = [body(prompt, 24, True) for prompt in PROMPTS[: support.LANES]] + [body("The end", 1, False)]
            texts = await asyncio.gather(*(text_of(client, request) for request in requests))
        self.assertTrue(all(texts))


class SmallPool(unittest.IsolatedAsyncioTestCase):
    async def test_conversations_beyond_the_pool_wait_or_are_refused_and_none_is_corrupted(self):
        url = support.URLS[1]
        requests = [body(f"Story {at}: " + "the rain fell on the hills. " * 40, 8, False) for at in range(4)]
        async with httpx.AsyncClient(base_url=url, timeout=support.TIMEOUT_S) as client:
            together = await asyncio.gather(*(client.post("/v1/completions", json=request) for request in requests))
            finished = 0
            for request, response in zip(requests, together):
                if response.status_code == 200:
                    finished += 1
                    text = response.json()["choices"][0]["text"]
                    self.assertEqual(text, await text_of(client, request))
                else:
                    self.assertIn(response.status_code, (429, 503))
                    self.assertTrue(response.json()["error"]["message"])
        self.assertGreaterEqual(finished, 3)
        await asyncio.to_thread(support.check_all_free, self, url)
