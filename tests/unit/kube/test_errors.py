"""How answers become errors."""

import json

import pytest

from draco.kube import errors
from draco.kube.errors import ApiError, from_response


def a_status(code: int, reason: str = "", message: str = "m", **details: object) -> bytes:
    return json.dumps(
        {"kind": "Status", "code": code, "reason": reason, "message": message, "details": details}
    ).encode()


@pytest.mark.parametrize(
    ("code", "reason", "expected"),
    [
        (400, "BadRequest", ApiError),
        (401, "Unauthorized", errors.Unauthorized),
        (403, "Forbidden", errors.Forbidden),
        (404, "NotFound", errors.NotFound),
        (409, "AlreadyExists", errors.AlreadyExists),
        (409, "Conflict", errors.Conflict),
        (410, "Expired", errors.Expired),
        (410, "Gone", errors.Expired),
        (422, "Invalid", errors.Invalid),
        (429, "TooManyRequests", errors.TooManyRequests),
        (500, "InternalError", errors.ServerError),
        (503, "ServiceUnavailable", errors.ServerError),
        (504, "Timeout", errors.ServerError),
    ],
)
def test_each_answer_has_its_error(code: int, reason: str, expected: type[ApiError]) -> None:
    error = from_response(code, {}, a_status(code, reason, "what went wrong"))
    assert type(error) is expected
    assert (error.status, error.reason, str(error)) == (code, reason, "what went wrong")


def test_a_namespace_on_its_way_out_is_told_from_missing_rights() -> None:
    causes = [{"reason": "NamespaceTerminating", "message": "namespace train is being terminated"}]
    assert type(from_response(403, {}, a_status(403, "Forbidden", causes=causes))) is errors.NamespaceTerminating
    assert type(from_response(403, {}, a_status(403, "Forbidden", causes=[]))) is errors.Forbidden


def test_the_wait_comes_from_the_header_or_from_the_status() -> None:
    assert from_response(429, {"Retry-After": "3"}, a_status(429)).retry_after_s == 3
    assert from_response(429, {}, a_status(429, retryAfterSeconds=5)).retry_after_s == 5
    assert from_response(429, {"Retry-After": "3"}, a_status(429, retryAfterSeconds=5)).retry_after_s == 3
    assert from_response(429, {"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}, a_status(429)).retry_after_s is None


@pytest.mark.parametrize("body", [b"<html>bad gateway</html>", b"", b"\xff\xfe", b'{"code": "odd"}', b"[1, 2]"])
def test_an_answer_that_is_no_status_still_says_what_it_can(body: bytes) -> None:
    error = from_response(502, {}, body)
    assert type(error) is errors.ServerError
    assert str(error).startswith("the API server answered 502")


def test_what_counts_is_the_code_of_the_answer() -> None:
    assert type(from_response(503, {}, a_status(404, "NotFound"))) is errors.ServerError
