"""What the test modules share: the servers' addresses, the model's name, and the state of the lanes."""

import os
import time

import httpx
import openai

URLS = os.environ["LAVALANE_URL"].split()
URL = URLS[0]
LANES = 4
TIMEOUT_S = 300


def client(url=URL):
    """The official client, which must not hide a failure by trying again."""
    return openai.OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0, timeout=TIMEOUT_S)


def model():
    """The name of the served model."""
    return client().models.list().data[0].id


def get(path, url=URL):
    """A JSON answer of the server's own routes."""
    response = httpx.get(f"{url}{path}", timeout=TIMEOUT_S)
    response.raise_for_status()
    return response.json()


def metric(name, url=URL):
    """The value of a metric that has no labels but the model's name."""
    text = httpx.get(f"{url}/metrics", timeout=TIMEOUT_S).text
    (line,) = [line for line in text.splitlines() if line.startswith(f"{name}{{")]
    return float(line.rsplit(" ", 1)[1])


def busy_slots(url=URL):
    """The lanes that are not idle or hold pages."""
    return [slot for slot in get("/slots", url) if slot["state"] != "idle" or slot["kv_pages"] != 0]


def wait_until(condition, what, seconds=30):
    """Wait for `condition`, for a bounded time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds} s: {what}")
        time.sleep(0.05)


def check_all_free(case, url=URL):
    """Nothing runs, nothing waits, and no page is held by a request."""
    wait_until(lambda: not busy_slots(url), "every lane is idle and holds no pages")
    for name in ("vllm:num_requests_running", "vllm:num_requests_waiting", "lavalane:kv_pages_used"):
        case.assertEqual(metric(name, url), 0, name)
    case.assertEqual(get("/health", url)["status"], "ok")
