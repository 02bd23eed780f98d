"""A WebSocket client against a server with a real model."""

import asyncio
import json
import unittest

import support
import websockets

ADDRESS = support.URL.replace("http", "ws", 1) + "/v1/stream"


def completion(identifier, prompt, **fields):
    return {"type": "completion", "id": identifier, "prompt": prompt, "temperature": 0, "max_tokens": 8, **fields}


class Connection:
    """One connection that speaks JSON."""

    async def __aenter__(self):
        self.socket = await websockets.connect(ADDRESS)
        return self

    async def __aexit__(self, *_):
        await self.socket.close()

    async def send(self, message):
        await self.socket.send(json.dumps(message))

    async def receive(self):
        return json.loads(await asyncio.wait_for(self.socket.recv(), support.TIMEOUT_S))

    async def until_ended(self, identifiers):
        """Every event, by its request's id, until each of these requests has ended."""
        events = {identifier: [] for identifier in identifiers}
        running = set(identifiers)
        while running:
            event = await self.receive()
            events[event["id"]].append(event)
            if event["type"] in ("done", "cancelled") or event.get("ends_request"):
                running.discard(event["id"])
        return events


def text_of(events):
    return "".join(event["text"] for event in events if event["type"] in ("token", "finished"))


class WebSocketClient(unittest.IsolatedAsyncioTestCase):
    def expected(self, prompt, count=8):
        reply = support.client().completions.create(
            model=support.model(), prompt=prompt, temperature=0, max_tokens=count)
        return reply.choices[0].text

    async def test_several_requests_on_one_connection_each_give_their_own_text(self):
        prompts = {"fox": "The quick brown fox", "sea": "The sea is", "sum": "One plus one is"}
        async with Connection() as connection:
            for identifier, prompt in prompts.items():
                await connection.send(completion(identifier, prompt))
            events = await connection.until_ended(prompts)
        for identifier, prompt in prompts.items():
            self.assertEqual(text_of(events[identifier]), self.expected(prompt))
            tokens = [event["index"] for event in events[identifier] if event["type"] == "token"]
            self.assertEqual(tokens, list(range(8)))
            self.assertEqual(events[identifier][-1]["usage"]["completion_tokens"], 8)

    async def test_a_chat_is_streamed_with_log_probabilities(self):
        message = {"type": "chat.completion", "id": "a", "messages": [{"role": "user", "content": "Say hello."}]}
        async with Connection() as connection:
            await connection.send({**message, "max_tokens": 4, "logprobs": True, "top_logprobs": 2})
            events = (await connection.until_ended(["a"]))["a"]
        tokens = [event for event in events if event["type"] == "token"]
        self.assertTrue(tokens and all(event["logprobs"]["logprob"] <= 0 for event in tokens))

    async def test_a_cancelled_request_ends_and_the_others_go_on(self):
        async with Connection() as connection:
            await connection.send(completion("long", "Once upon a time", max_tokens=4000))
            await connection.send(completion("short", "The sea is"))
            while (await connection.receive())["id"] != "long":
                pass
            await connection.send({"type": "cancel", "id": "long"})
            events = await connection.until_ended(["long", "short"])
        self.assertEqual(events["long"][-1]["type"], "cancelled")
        self.assertLess(events["long"][-1]["usage"]["completion_tokens"], 4000)
        self.assertEqual(events["short"][-1]["type"], "done")

    async def test_a_message_that_cannot_be_used_is_an_error_event_and_the_connection_lives_on(self):
        async with Connection() as connection:
            for bad in ("no json", "[1]", '{"type": "dance", "id": "a"}'):
                await connection.socket.send(bad)
                self.assertEqual((await connection.receive())["type"], "error")
            await connection.socket.send(b"\x00\x01")
            self.assertEqual((await connection.receive())["type"], "error")
            await connection.send(completion("a", "x", temperature=-1))
            error = await connection.receive()
            self.assertEqual((error["id"], error["error"]["param"]), ("a", "temperature"))
            await connection.send({"type": "ping", "id": 7})
            self.assertEqual(await connection.receive(), {"type": "pong", "id": 7})
            await (await connection.socket.ping())
            await connection.send(completion("a", "The sea is"))
            self.assertEqual((await connection.until_ended(["a"]))["a"][-1]["type"], "done")

    async def test_a_closed_connection_frees_its_lanes(self):
        async with Connection() as connection:
            await connection.send(completion("a", "Once upon a time", max_tokens=4000))
            await connection.send(completion("b", "Far away", max_tokens=4000))
            while (await connection.receive())["type"] != "token":
                pass
        await asyncio.to_thread(support.check_all_free, self)

    def tearDown(self):
        support.check_all_free(self)
