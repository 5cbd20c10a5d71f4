# redis-py over all that a server of strings does, in both protocol versions, with threads: HOST PORT.
import sys, random, threading, redis
host, port = sys.argv[1], int(sys.argv[2])
for protocol in (2, 3):
    c = redis.Redis(host=host, port=port, protocol=protocol, socket_timeout=30)
    assert c.flushall() and c.ping() and c.dbsize() == 0
    assert c.set("k", "v", px=100000, nx=True) and c.set("k", "w", nx=True) is None
    assert c.set("k", "w", xx=True, get=True, keepttl=True) == b"v" and 0 < c.pttl("k") <= 100000
    assert c.getex("k", persist=True) == b"w" and c.ttl("k") == -1 and c.getdel("k") == b"w"
    assert c.append("s", "hello") == 5 and c.setrange("s", 6, "world") == 11 and c.getrange("s", 0, 4) == b"hello"
    assert c.incr("n", 5) == 5 and c.decrby("n", 7) == -2 and c.incrbyfloat("f", 1.5) == 1.5
    assert c.mset({"a": 1, "b": 2}) and c.mget("a", "none", "b") == [b"1", None, b"2"] and not c.msetnx({"a": 1, "z": 1})
    assert c.setbit("bits", 7, 1) == 0 and c.getbit("bits", 7) == 1 and c.bitcount("bits") == 1 and c.bitpos("bits", 1) == 7
    assert c.bitop("NOT", "not", "bits") == 1 and c.get("not") == b"\xfe"
    assert c.bitfield("bf").set("u8", "#1", 200).incrby("u8", "#1", 100, "SAT").execute() == [0, 255]
    assert c.expire("a", 100) and c.expiretime("a") > 0 and c.persist("a") and c.rename("a", "a2") and c.copy("a2", "a3")
    assert c.type("a2") == b"string" and c.object("encoding", "a2") == b"int" and c.exists("a2", "a3", "a") == 2
    dump = c.dump("s")
    assert c.restore("s2", 0, dump) and c.get("s2") == c.get("s")
    assert c.lcs("s", "s2", len=True) == 11 and c.touch("s", "s2") == 2 and c.unlink("s2") == 1
    with c.pipeline() as p:
        p.watch("n"); p.multi(); p.incr("n"); p.get("n")
        assert p.execute() == [-1, b"-1"]
        p.watch("n"); c.incr("n"); p.multi(); p.incr("n")
        try: p.execute(); assert False
        except redis.WatchError: pass
    try: c.incr("s"); assert False
    except redis.ResponseError as e: assert "not an integer" in str(e)
    assert c.client_setname("me") and c.client_getname() in ("me", b"me") and c.config_get("maxmemory") and c.info()["redis_mode"] == "standalone"
    assert "get" in c.command() and c.time()[0] > 0 and c.client_id() > 0
    want = {b"scan:%d" % i for i in range(3000)}
    with c.pipeline(transaction=False) as p:
        for k in want: p.set(k, k * 3)
        p.execute()
    assert set(c.scan_iter(match="scan:*", count=100)) == want and set(c.keys("scan:*")) == want
    big = bytes(range(256)) * 30000
    assert c.set("big", big) and c.get("big") == big and c.getrange("big", 100000, 100255) == big[100000:100256] and c.strlen("big") == len(big)
    wrong = []
    def work(seed):
        try:
            r, own = random.Random(seed), {}
            for i in range(400):
                k = "t%d:%d" % (seed, r.randrange(50))
                if r.random() < 0.5: v = bytes(r.getrandbits(8) for _ in range(r.choice([0, 9, 400, 7000]))); c.set(k, v); own[k] = v
                else: assert c.get(k) == own.get(k)
            for i in range(200): c.incr("shared")
        except Exception as e: wrong.append(e)
    threads = [threading.Thread(target=work, args=(s,)) for s in range(8)]
    [t.start() for t in threads]; [t.join() for t in threads]
    assert not wrong and c.get("shared") == b"1600", wrong
print("ok")
