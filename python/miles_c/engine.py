"""A call of an inference engine, for generate functions."""

import asyncio
import json
import urllib.error
import urllib.request


def post_now(url, payload, timeout=600.0):
    """POSTs JSON and returns the JSON of the answer."""
    data = json.dumps(payload).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=timeout) as answer:
            return json.loads(answer.read())
    except urllib.error.HTTPError as exc:
        exc.msg = "%s: %s" % (exc.msg, exc.read(400).decode("utf-8", "replace"))
        raise


async def post(url, payload, max_retries=60, **kwargs):
    """The same without blocking the event loop; tried again while the engine does not answer."""
    loop = asyncio.get_running_loop()
    for attempt in range(max_retries):
        try:
            return await loop.run_in_executor(None, post_now, url, payload)
        except OSError as exc:
            if attempt + 1 == max_retries or getattr(exc, "code", 503) < 500:
                raise
            await asyncio.sleep(min(1.0, 0.1 * 2**attempt))
