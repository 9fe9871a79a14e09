"""Reviews by the API server: whose token this is, what that user may do, and who the caller is."""

import msgspec


class ReviewedUser(msgspec.Struct, frozen=True, omit_defaults=True):
    """The user of a token. All fields are needed to ask what the user may do."""

    username: str = ""
    uid: str = ""
    groups: list[str] = []
    extra: dict[str, list[str]] = {}


class ReviewStatus(msgspec.Struct, frozen=True, rename="camel"):
    """The answer: the user of the token, the caller, or whether the user may."""

    authenticated: bool = False
    user: ReviewedUser = ReviewedUser()
    user_info: ReviewedUser = ReviewedUser()
    allowed: bool = False


class Review(msgspec.Struct, frozen=True):
    """TokenReview and SelfSubjectReview of authentication.k8s.io/v1, and SubjectAccessReview of authorization.k8s.io/v1."""

    status: ReviewStatus = ReviewStatus()
