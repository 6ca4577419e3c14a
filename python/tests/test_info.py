"""A server's information about itself, without a stream."""

import asyncio
import socket
import time

import pytest

import croupier
from croupier import pb
from test_access import Secured


def both(address, **options):
    """The answers, or the errors, of the threaded and the asyncio client."""
    def tried(call):
        try:
            return call()
        except Exception as error:
            return type(error), str(error)

    async def later():
        return await croupier.aio.server_info(address, **options)

    return [tried(lambda: croupier.server_info(address, **options)), tried(lambda: asyncio.run(later()))]


def test_a_server_says_what_it_is(serve):
    server = serve("--max-rows-per-step=77")
    for info in both(server.uds):
        assert isinstance(info, pb.GetServerInfoResponse) and info.limits.max_rows_per_step == 77 and info.backend == "cpu"
        assert {"inline", "shared_memory"} <= {*info.data_paths} and "temperature" in info.parameters
        assert "chat" in [preset.name for preset in info.presets] and not info.HasField("vocabulary")


@pytest.mark.parametrize("within", [9e9, float("inf")])
def test_its_answer_may_be_waited_for_without_a_limit(server, within):
    for info in both(server.uds, answer_within=within):
        assert isinstance(info, pb.GetServerInfoResponse), info


def test_it_takes_the_options_of_tls_and_tokens(serve, tmp_path):
    secured = Secured(serve, tmp_path)
    for info in both(secured.address, **secured.options):
        assert info.version
    for changes, said in (({"auth_token": None}, "UNAUTHENTICATED.*the server requires a token, give auth_token="),
                          ({"tls_ca": None, "tls_cert": None, "tls_key": None}, "the server may require TLS, give tls_ca=")):
        for kind, told in both(secured.address, **{**secured.options, **changes}):
            assert kind is croupier.CroupierError
            with pytest.raises(croupier.CroupierError, match=said):
                raise kind(told)


def test_its_mistakes_are_told(tmp_path):
    for wrong, options, kind, said in [
        ("127.0.0.1", {}, ValueError, "the port is missing"),
        ("127.0.0.1:1", {"tls_sa": "x"}, TypeError, "server_info has no option 'tls_sa'; did you mean 'tls_ca'?"),
        ("127.0.0.1:1", {"answer_within": -1}, ValueError, "answer_within is -1, must be a number of seconds"),
        (f"unix:{tmp_path}/none", {}, croupier.CroupierError, "UNAVAILABLE"),
    ]:
        for found, told in both(wrong, **options):
            assert found is kind and said in told


def test_a_server_that_does_not_answer_is_not_waited_for_longer():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        began = time.monotonic()
        for kind, told in both(f"127.0.0.1:{silent.getsockname()[1]}", answer_within=0.5):
            assert kind is croupier.CroupierError and told == "the server did not answer within 0.5 s"
        assert time.monotonic() - began < 5
