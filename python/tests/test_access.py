"""TLS and tokens, against a server that requires both."""

import asyncio
import contextlib
import socket
import threading
import time

import grpc
import pytest
import trustme

import croupier
from test_client import VOCAB, logits, params, text_of

TOKEN, NEXT = "a-token-of-the-worker", "another-token-of-it"


class Secured:
    """A server that requires a certificate and a token of its clients on TCP."""

    def __init__(self, serve, folder):
        authority = trustme.CA()
        self.ca, self.cert, self.key, self.tokens = (folder / name for name in ("ca.pem", "cert.pem", "key.pem", "tokens"))
        authority.cert_pem.write_to_path(self.ca)
        own = authority.issue_cert("localhost")
        own.private_key_pem.write_to_path(folder / "server.key")
        own.cert_chain_pems[0].write_to_path(folder / "server.pem")
        clients = authority.issue_cert("worker.example")
        clients.private_key_pem.write_to_path(self.key)
        clients.cert_chain_pems[0].write_to_path(self.cert)
        self.tokens.write_text(TOKEN + "\n")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.server = serve(f"--listen=127.0.0.1:{port}", f"--tls-cert={folder / 'server.pem'}", f"--tls-key={folder / 'server.key'}",
                            f"--tls-client-ca={self.ca}", f"--auth-token-file={self.tokens}")
        self.address = f"localhost:{port}"
        self.options = {"tls_ca": self.ca, "tls_cert": str(self.cert), "tls_key": self.key, "auth_token": TOKEN}

    def again(self):
        self.server.kill()
        self.server.start()


@pytest.fixture
def secured(serve, tmp_path):
    return Secured(serve, tmp_path)


def test_tokens_are_the_same_over_tls_and_after_a_kill(secured):
    expected = text_of(secured.server, 8, "inline", [1])[0]
    token = TOKEN
    with croupier.connect(secured.address, VOCAB, **{**secured.options, "auth_token": lambda: token}) as stream:
        text = stream.open(prompt=[1, 2], **params(1))
        for position in range(8):
            if position == 4:
                # The next connection uses the replaced token.
                token = NEXT
                secured.tokens.write_text(NEXT)
                secured.again()
            stream.sample(logits(1, position), [text])
        assert text.tokens == expected

    async def run():
        async with croupier.aio.connect(secured.address, VOCAB, **{**secured.options, "auth_token": NEXT}) as stream:
            text = stream.open(prompt=[1, 2], **params(1))
            for position in range(8):
                if position == 4:
                    secured.again()
                await stream.sample(logits(1, position), [text])
            return text.tokens

    assert asyncio.run(run()) == expected


def test_ranks_come_over_tls_too(secured):
    expected = text_of(secured.server, 2, "inline", [1])[0]
    by_number = {**secured.options, "tls_name": "localhost"}
    address = secured.address.replace("localhost", "127.0.0.1")
    with croupier.connect(secured.address, VOCAB, vocab_shards=[400, 600], **secured.options) as stream:
        text = stream.open(prompt=[1, 2], **params(1))
        with croupier.attach(stream.shard_token, 1, address=address, **by_number) as rank:
            rank.send(logits(1, 0)[400:])
            stream.sample(logits(1, 0)[:400], [text])

        async def bring():
            async with croupier.aio.attach(stream.shard_token, 1, **secured.options) as rank:
                await rank.send(logits(1, 1)[400:])
                await asyncio.to_thread(stream.sample, logits(1, 1)[:400], [text])
                assert await rank.wait() == []

        asyncio.run(bring())
        assert text.tokens == expected


def test_what_is_wrong_is_said(secured, tmp_path):
    def refused(kind, match, address=secured.address, **changes):
        options = {"reconnect_within": 0.1, **secured.options, **changes}
        with pytest.raises(kind, match=match):
            croupier.connect(address, VOCAB, **options)

        async def enter():
            async with croupier.aio.connect(address, VOCAB, **options):
                pass

        with pytest.raises(kind, match=match):
            asyncio.run(enter())

    refused(croupier.CroupierError, "UNAUTHENTICATED.*requires a token, give auth_token=", auth_token=None)
    refused(croupier.CroupierError, "UNAUTHENTICATED.*check the token that auth_token= gives", auth_token="some-other-token-of-it")
    refused(croupier.CroupierError, "UNAVAILABLE.*may require a client certificate, give tls_cert= and tls_key=", tls_cert=None, tls_key=None)
    refused(croupier.CroupierError, "UNAVAILABLE.*may require TLS, give tls_ca=", tls_ca=None, tls_cert=None, tls_key=None)
    refused(croupier.CroupierError, "tls_ca: .*none.pem", tls_ca=tmp_path / "none.pem")
    refused(croupier.CroupierError, "tls_ca: .*surrogates not allowed", tls_ca="/\ud800")
    refused(croupier.CroupierError, "tls_ca: .*null byte", tls_ca="/\0")
    refused(TypeError, "tls_name is 5, must be a string", tls_name=5)
    refused(ValueError, "tls_cert and tls_key must be given together", tls_key=None)
    refused(ValueError, "need tls_ca", tls_ca=None)
    refused(ValueError, "Unix socket has no TLS", address=secured.server.uds)
    refused(TypeError, "connect has no option 'tls_sa'; did you mean 'tls_ca'", tls_sa="x")
    refused(TypeError, "connect has no option 'max_row'; did you mean 'max_rows'", max_row=5)
    refused(TypeError, "address is None, must be", address=None)
    refused(ValueError, "reconnect_within is -1, must be a number of seconds", reconnect_within=-1)
    with pytest.raises(TypeError, match="attach has no option 'adress'; did you mean 'address'"):
        with croupier.connect(secured.address, VOCAB, vocab_shards=[400, 600], **secured.options) as stream:
            croupier.attach(stream.shard_token, 1, adress="x")


def test_what_is_wrong_is_said_to_ranks_too(secured):
    with croupier.connect(secured.address, VOCAB, vocab_shards=[400, 600], **secured.options) as stream:
        def refused(match, **changes):
            options = {**secured.options, **changes}

            async def enter():
                async with croupier.aio.attach(stream.shard_token, 1, **options):
                    pass

            for call in (lambda: croupier.attach(stream.shard_token, 1, **options)), lambda: asyncio.run(enter()):
                with pytest.raises(croupier.CroupierError, match=match) as error:
                    call()
                assert error.value.code in match

        refused("UNAUTHENTICATED.*requires a token, give auth_token=$", auth_token=None)
        refused("UNAVAILABLE.*may require a client certificate, give tls_cert= and tls_key=$", tls_cert=None, tls_key=None)
        refused("UNAVAILABLE.*may require TLS, give tls_ca=$", tls_ca=None, tls_cert=None, tls_key=None)


def test_asyncio_says_each_time_why_the_server_refused(serve, tmp_path):
    """If a write meets the refusal, gRPC says only that the write failed. On an idle machine this happens to one connection in five."""
    (tmp_path / "tokens").write_text(TOKEN)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    serve(f"--listen=127.0.0.1:{port}", f"--auth-token-file={tmp_path / 'tokens'}")

    async def told():
        with pytest.raises(croupier.CroupierError) as refused:
            async with croupier.aio.connect(f"127.0.0.1:{port}", VOCAB, auth_token="none-of-the-server's", reconnect_within=0):
                pass
        return str(refused.value)

    async def every():
        return [said for _ in range(20) for said in await asyncio.gather(*(told() for _ in range(8)))]

    assert [said for said in asyncio.run(every()) if not said.startswith("UNAUTHENTICATED")] == []


def test_mistakes_in_the_address_are_told_at_once(serve, tmp_path):
    broken = tmp_path / "ca.pem"
    broken.write_text("no certificate")
    with pytest.raises(croupier.CroupierError, match=f"tls_ca: {broken} contains no PEM data"):
        croupier.connect("127.0.0.1:1", VOCAB, tls_ca=broken)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    serve(f"--admin=127.0.0.1:{port}")
    with pytest.raises(croupier.CroupierError, match="is it the admin port"):
        croupier.connect(f"127.0.0.1:{port}", VOCAB)


@pytest.mark.parametrize("proxy", ["is not there", "refuses"])
@pytest.mark.parametrize("variable", ["grpc_proxy", "https_proxy", "http_proxy"])
def test_a_proxy_of_the_environment_is_named(monkeypatch, variable, proxy):
    def told(said):
        async def enter():
            async with croupier.aio.connect("127.0.0.1:1", VOCAB, reconnect_within=0):
                pass

        for call in (lambda: croupier.connect("127.0.0.1:1", VOCAB, reconnect_within=0), lambda: asyncio.run(enter()),
                     lambda: croupier.server_info("127.0.0.1:1")):
            with pytest.raises(croupier.CroupierError, match=f"UNAVAILABLE: .*{said}$"):
                call()

    def refuse():
        with contextlib.suppress(OSError):
            while True:
                caller, _ = listener.accept()
                with caller:
                    caller.recv(4096)
                    caller.sendall(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        if proxy == "refuses":
            listener.listen()
            threading.Thread(target=refuse, daemon=True).start()
        for name in ("grpc_proxy", "https_proxy", "http_proxy", "no_proxy", "no_grpc_proxy"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv(variable, f"http://127.0.0.1:{listener.getsockname()[1]}")
        told(f"; the connection goes through the proxy that the environment variable {variable} names; to connect directly, add the server's "
             "host to no_grpc_proxy")
        monkeypatch.setenv("no_grpc_proxy", "127.0.0.1")
        told("Connection refused")


LONG = "/tmp/" + "ä" * 60


@pytest.mark.parametrize("wrong, said", [
    ("127.0.0.1", "the port is missing, give for example 127.0.0.1:50051$"),
    ("127.0.0.1:", "the port is missing, give for example 127.0.0.1:50051$"),
    ("", "the port is missing, give for example 127.0.0.1:50051$"),
    ("dns:///croupier", "the port is missing, give for example dns:///croupier:50051$"),
    ("127.0.0.1:99999", "whose port is 99999, must be in 1 ..= 65535$"),
    ("localhost:0", "whose port is 0, must be in 1 ..= 65535$"),
    ("127.0.0.1:abc", "the port is 'abc', must be a number, such as 127.0.0.1:50051$"),
    ("127.0.0.1:56100/", "without a trailing slash: 127.0.0.1:56100$"),
    ("127.0.0.1:56100/v1", "with nothing after the port, such as 127.0.0.1:56100$"),
    ("127.0.0.1:50051\n", "with white space around it; give '127.0.0.1:50051'$"),
    (":50051", "the host is missing, give for example 127.0.0.1:50051$"),
    ("::1:50051", r"an IPv6 address must be in brackets, such as \[::1\]:50051$"),
    ("2001:db8::1", r"an IPv6 address must be in brackets, such as \[::1\]:50051$"),
    ("http://127.0.0.1:50051", "without a scheme; for TLS give tls_ca$"),
    ("/run/croupier.sock", "a path; for a Unix socket give 'unix:/run/croupier.sock'$"),
    ("unix.sock", "a path; for a Unix socket give 'unix:unix.sock'$"),
    ("unix:/run/\ud800.sock", r"address is 'unix:/run/\\ud800.sock', must be valid Unicode; '\\ud800' is half of a character$"),
    ("unix:/run/croupier\0.sock", "must be unix:PATH or HOST:PORT without NUL$"),
    ("127.0.0.1\0:50051", "must be unix:PATH or HOST:PORT without NUL$"),
    ("unix:", "which has no path; give for example unix:/run/croupier/croupier.sock$"),
    ("unix://run/croupier.sock", "begins with two slashes; give 'unix:/run/croupier.sock' or 'unix:run/croupier.sock'$"),
    (f"unix:{LONG}", f"address has a path of 125 bytes, a Unix socket's has at most 107: {LONG}; have the server listen on a shorter one"),
    (f"unix://{LONG}", "address has a path of 125 bytes"),
    (f"unix-abstract:{LONG}", "address has a path of 125 bytes"),
])
def test_an_address_that_is_wrong_says_what_is_right(wrong, said):
    for connect in (croupier.connect, croupier.aio.connect):
        with pytest.raises(ValueError, match=said):
            connect(wrong, VOCAB)


def test_addresses_in_every_form_of_grpc_are_taken(serve):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = serve(f"--listen=127.0.0.1:{port}")
    for right in (server.uds, "unix://" + server.path, f"127.0.0.1:{port}", f"localhost:{port}", f"dns:///localhost:{port}", f"ipv4:127.0.0.1:{port}"):
        with croupier.connect(right, VOCAB) as stream:
            assert stream.sample(logits(1, 0), [stream.open(**params(1))])
    for right in ("[::1]:50051", "ipv6:[::1]:50051", "ipv6:%5B::1%5D:50051", "unixhost:50051", "unix:" + "a" * 107):
        croupier._access.Access(right)


def test_a_certificate_of_another_authority_is_told_and_not_waited_for(secured, tmp_path):
    other = tmp_path / "other.pem"
    trustme.CA().cert_pem.write_to_path(other)
    began = time.monotonic()
    for options, said in (({"tls_ca": other}, "none of the authorities in tls_ca= has signed the server's certificate"),
                          ({"tls_ca": None, "tls_cert": None, "tls_key": None, "credentials": grpc.ssl_channel_credentials()},
                           "the server's certificate is not trusted, give tls_ca= the authority that signed it")):
        with pytest.raises(croupier.CroupierError, match=f"CERTIFICATE_VERIFY_FAILED.*{said}"):
            croupier.connect(secured.address, VOCAB, **{**secured.options, **options})

        async def enter():
            async with croupier.aio.connect(secured.address, VOCAB, **{**secured.options, **options}):
                pass

        with pytest.raises(croupier.CroupierError, match=f"CERTIFICATE_VERIFY_FAILED.*{said}"):
            asyncio.run(enter())
    assert time.monotonic() - began < 10


def test_authorities_that_are_being_replaced_are_waited_for(secured, tmp_path):
    """The file with the new authorities may appear after the server that needs it."""
    authorities, other = tmp_path / "authorities.pem", tmp_path / "other.pem"
    trustme.CA().cert_pem.write_to_path(other)
    authorities.write_bytes(secured.ca.read_bytes())
    with croupier.connect(secured.address, VOCAB, **{**secured.options, "tls_ca": authorities}) as stream:
        text = stream.open(**params(1))
        stream.sample(logits(1, 0), [text])
        authorities.write_bytes(other.read_bytes())
        secured.again()
        late = threading.Timer(1.5, lambda: authorities.write_bytes(secured.ca.read_bytes()))
        late.start()
        stream.sample(logits(1, 1), [text])
        assert len(text.tokens) == 2
        late.join()


def test_tries_to_connect_grow_apart():
    """Checks the range of the pauses, and that they differ: the chance that all are the same is one in millions."""
    from croupier._front import backing_off

    many = [[pause for pause, _ in zip(backing_off(), range(8))] for _ in range(5)]
    for pauses in many:
        for at, pause in enumerate(pauses):
            most = min(0.1 * 2 ** at, 2.0)
            assert most / 2 <= pause <= most
    assert len({tuple(pauses) for pauses in many}) == 5


def test_a_function_that_gives_no_token_is_told_by_name_and_asked_again(secured):
    given = [TOKEN]

    def token():
        return given[0] if given else open("/nowhere/token").read()

    with croupier.connect(secured.address, VOCAB, **{**secured.options, "auth_token": token}) as stream:
        text = stream.open(**params(1))
        stream.sample(logits(1, 0), [text])
        given.clear()
        secured.again()
        for _ in range(2):
            with pytest.raises(croupier.CroupierError, match="auth_token: the function raised FileNotFoundError"):
                stream.sample(logits(1, 1), [text])
        given.append(TOKEN)
        stream.sample(logits(1, 1), [text])
        assert len(text.tokens) == 2
    given.clear()
    with pytest.raises(croupier.CroupierError, match="auth_token: the function raised"):
        croupier.connect(secured.address, VOCAB, **{**secured.options, "auth_token": token})


@pytest.mark.parametrize("option, wrong, said", [
    ("auth_token", b"secret", "auth_token is bytes, must be a string or a function that returns one"),
    ("auth_token", 5, "auth_token is int, must be a string"),
    ("auth_token", "secret\nX: y", "auth_token has characters that are not allowed in a header"),
    ("auth_token", "secr\u00e9t", "auth_token has characters"),
    ("tls_ca", b"-----BEGIN secret", "tls_ca is bytes, must be a file path"),
    ("tls_key", "-----BEGIN PRIVATE KEY-----\nsecret", "tls_key contains PEM data, must be a file path; to give PEM data use credentials="),
    ("traceparent", 5, "traceparent is 5, must be a string"),
    ("traceparent", "00-\n", "traceparent has characters that are not allowed in a header"),
    ("model", 5, "model is 5, must be a string"),
    ("device", 5, "device is 5, must be a string"),
])
def test_text_that_is_none_is_told_where_it_is_given_and_no_secret_with_it(option, wrong, said):
    for of in croupier, croupier.aio:
        with pytest.raises((TypeError, ValueError), match=f"^{said}") as error:
            of.connect("localhost:1", VOCAB, **{option: wrong})
        assert "secr" not in str(error.value)


def test_a_token_is_sent_as_it_is_and_shown_nowhere(server):
    for gives, said in ((b"secret", "returned bytes, must return a string"), ("secret\n\n2", "what the function returned has characters"), (5, "returned int")):
        with pytest.raises(croupier.CroupierError, match=f"^auth_token: .*{said}") as error:
            croupier.connect(server.uds, VOCAB, auth_token=lambda: gives)
        assert "secret" not in str(error.value)
    for gives in None, "", " secret\n":
        with croupier.connect(server.uds, VOCAB, auth_token=lambda: gives) as stream:
            with pytest.raises(TypeError, match="traceparent is 5, must be a string"):
                stream.sample(logits(1, 0), [stream.open()], traceparent=5)
    with croupier.connect(server.uds, VOCAB, auth_token="secret") as stream:
        assert "secret" not in repr(stream._access) and dict(stream._access.metadata()) == {"authorization": "Bearer secret"}
