"""Stock PyTorch clients against our server: stock_client_test.py <store_test_server>."""

import datetime
import sys
import threading
import time

import stock

stock.use_torch()

import torch.distributed as dist  # noqa: E402

LIMIT = datetime.timedelta(seconds=stock.PATIENCE_S)


def ms(count):
    return datetime.timedelta(milliseconds=count)


def raises(kind, words, call):
    try:
        call()
    except kind as error:
        assert words in str(error), f"{words!r} not in {error!r}"
        return
    raise AssertionError(f"no {kind.__name__}")


class Stores:
    """Makes clients of one server; `make` may wrap them in prefixes."""

    def __init__(self, server, wrap):
        self.server = server
        self.wrap = wrap

    def bare(self, **options):
        options.setdefault("timeout", LIMIT)
        return dist.TCPStore("127.0.0.1", self.server.port, is_master=False, **options)

    def make(self):
        return self.wrap(self.bare())


def counting(stores):
    store = stores.make()
    for i in (1, 2, 3):
        store.add("key", i)
    for key in ("key0", "key1", "key2"):
        store.set(key, key)
    for i in range(1, 7):
        store.add("key3", i)
    assert store.num_keys() == 5, store.num_keys()
    assert store.get("key") == b"6" and store.get("key3") == b"21"
    assert store.check(["key3"]) and not store.check(["Randomkey3"])
    store.set("-key3", "7")
    assert store.get("-key3") == b"7"
    assert store.delete_key("-key3") and not store.delete_key("-key3")
    assert store.num_keys() == 5


def key_counts(stores):
    store = stores.make()
    for key in ("a", "b", "c"):
        store.add(key, 1)
    store.set("d", "")
    store.add("e", 1)
    store.set("d", "again")
    assert store.num_keys() == 5
    store.delete_key("a")
    assert store.num_keys() == 4
    store.delete_key("b")
    store.delete_key("c")
    assert store.num_keys() == 2
    store.set("a", "")
    assert store.num_keys() == 3


def compare_set(stores):
    store = stores.make()
    assert store.compare_set("k", "wrong", "new") == b"wrong"
    assert not store.check(["k"])
    assert store.compare_set("k", "", "first") == b"first"
    assert store.compare_set("k", "wrong", "second") == b"first"
    assert store.compare_set("k", "first", "second") == b"second"
    assert store.get("k") == b"second"


def waiting(stores):
    store = stores.make()
    start = time.monotonic()
    raises(dist.DistStoreError, "bad_key", lambda: store.wait(["bad_key"], ms(250)))
    assert time.monotonic() - start >= 0.25
    store.add("good_key", 1)
    store.wait(["good_key"])
    store.set_timeout(ms(100))
    raises(dist.DistStoreError, "late", lambda: store.get("late"))
    store.set_timeout(LIMIT)
    store.set("late", "v")
    assert store.get("late") == b"v"
    store.delete_key("late")
    store.set_timeout(ms(100))
    raises(dist.DistStoreError, "late", lambda: store.get("late"))


def waking(stores):
    waiter, setter = stores.make(), stores.make()
    seen = []
    thread = threading.Thread(target=lambda: seen.append(waiter.get("k")))
    thread.start()
    assert stores.server.order("await 1") == "ok"
    setter.set("k", "v")
    thread.join(stock.PATIENCE_S)
    assert seen == [b"v"], seen
    thread = threading.Thread(target=lambda: seen.append(waiter.get("cas")))
    thread.start()
    assert stores.server.order("await 1") == "ok"
    setter.compare_set("cas", "", "made")
    thread.join(stock.PATIENCE_S)
    assert seen == [b"v", b"made"], seen


def appending(stores):
    store = stores.make()
    store.set("existing", "po")
    store.append("existing", "tato")
    store.append("missing", "po")
    store.append("missing", "tato")
    assert store.get("existing") == b"potato" and store.get("missing") == b"potato"


def many_keys(stores):
    store = stores.make()
    names = [f"rank{i}" for i in range(4096)]
    values = [str(i) * 20 for i in range(4096)]
    store.multi_set(names, values)
    assert store.multi_get(list(reversed(names))) == [v.encode() for v in reversed(values)]
    store.wait(names)
    assert store.check(names)


def large_values(stores):
    store = stores.make()
    for size in (0, 1439, 1440, 1441, 65536, 8 * 1024 * 1024):
        value = bytes(i % 251 for i in range(size)) if size < 100_000 else b"x" * size
        store.set("large", value)
        assert store.get("large") == value, size


def queues(stores):
    store, other = stores.make(), stores.make()
    assert not store.check(["q"]) and store.queue_len("q") == 0
    store.queue_push("q", "1")
    store.queue_push("q", "2")
    assert store.check(["q"]) and store.queue_len("q") == 2
    store.wait(["q"])
    assert store.queue_pop("q") == b"1" and store.queue_pop("q") == b"2"
    assert not store.check(["q"]) and store.queue_len("q") == 0
    raises(dist.QueueEmptyError, "", lambda: store.queue_pop("q", block=False))
    store.set_timeout(ms(10))
    raises(dist.DistStoreError, "", lambda: store.queue_pop("q"))
    store.set_timeout(LIMIT)

    def second():
        assert other.queue_pop("a") == b"ping"
        other.queue_push("b", "pong")

    thread = threading.Thread(target=second)
    thread.start()
    store.queue_push("a", "ping")
    assert store.queue_pop("b") == b"pong"
    thread.join(stock.PATIENCE_S)


def clones(stores):
    store = stores.make()
    store.set("foo", "bar")
    clone = store.clone()
    assert clone.get("foo") == b"bar"
    clone.set("other", "way")
    assert store.get("other") == b"way"


def five_clients(stores):
    stores.make().set("shared", "v")
    for i in range(5):
        store = stores.make()
        assert store.get("shared") == b"v"
        store.set(f"own{i}", "old")
        assert store.compare_set(f"own{i}", "old", "new") == b"new"
        assert stores.make().get(f"own{i}") == b"new"


def listing(stores):
    store = stores.bare()
    if not hasattr(store, "list_keys"):
        return "this PyTorch lists no keys"
    outer = dist.PrefixStore("mid", store)
    inner = dist.PrefixStore("pre", outer)
    inner.set("k", "v")
    store.set("top", "v")
    assert sorted(store.list_keys()) == ["mid/pre/k", "top"], store.list_keys()
    assert store.get("mid/pre/k") == b"v"


def init_counter(stores):
    first = stores.bare(world_size=2)
    assert first.num_keys() == 1  # init/
    stores.bare(world_size=2)
    assert first.num_keys() == 1
    stores.bare()  # without a world size nobody is counted
    if not hasattr(first, "list_keys"):
        return "this PyTorch lists no keys"
    assert sorted(first.list_keys()) == []  # names without the leading slash are not the users'


def barriers(stores):
    store = stores.bare()
    if not hasattr(store, "barrier"):
        return "this PyTorch has no barrier"
    others = [stores.bare() for _ in range(3)]
    threads = [threading.Thread(target=lambda s=s: s.barrier("b", 4)) for s in others]
    for thread in threads:
        thread.start()
    assert stores.server.order("await 3") == "ok"
    store.barrier("b", 4)
    for thread in threads:
        thread.join(stock.PATIENCE_S)
        assert not thread.is_alive()
    raises(dist.DistStoreError, "barrier timeout", lambda: (store.set_timeout(ms(50)), store.barrier("c", 2)))
    store.set_timeout(LIMIT)
    store.barrier("b", 4)


def reset_closes(stores):
    store = stores.make()
    store.set("stale", "v")
    assert stores.server.order("keys") != "0"
    assert stores.server.order("reset") == "ok"
    raises(dist.DistNetworkError, "", lambda: store.add("n", 1))
    assert stores.make().num_keys() == 0


CASES = [counting, key_counts, compare_set, waiting, waking, appending, many_keys, large_values, queues, clones]
CASES += [five_clients, listing, init_counter, barriers, reset_closes]

WRAPS = {
    "plain": lambda store: store,
    "prefixed": lambda store: dist.PrefixStore("prefix", store),
    "nested": lambda store: dist.PrefixStore("inner", dist.PrefixStore("outer", store)),
}


def main():
    with stock.OurServer(sys.argv[1]) as server:
        for name, wrap in WRAPS.items():
            for case in CASES:
                server.order("reset")
                note = case(Stores(server, wrap))
                print(f"ok {name} {case.__name__}" + (f" ({note})" if note else ""), flush=True)


if __name__ == "__main__":
    main()
