"""Questions to the API server about a caller: whose token this is, what that user may do, and who asks."""

import msgspec


class ReviewedUser(msgspec.Struct, frozen=True, omit_defaults=True):
    """Who a token belongs to. All of it goes into the question of what the user may do."""

    username: str = ""
    uid: str = ""
    groups: list[str] = []
    extra: dict[str, list[str]] = {}


class TokenReviewStatus(msgspec.Struct, frozen=True):
    """What the API server says of a token."""

    authenticated: bool = False
    user: ReviewedUser = ReviewedUser()


class TokenReview(msgspec.Struct, frozen=True):
    """authentication.k8s.io/v1."""

    status: TokenReviewStatus = TokenReviewStatus()


class SelfReviewStatus(msgspec.Struct, frozen=True, rename="camel"):
    """What the API server says of the user who asks."""

    user_info: ReviewedUser = ReviewedUser()


class SelfSubjectReview(msgspec.Struct, frozen=True):
    """authentication.k8s.io/v1."""

    status: SelfReviewStatus = SelfReviewStatus()


class AccessReviewStatus(msgspec.Struct, frozen=True):
    """Whether the user may."""

    allowed: bool = False


class SubjectAccessReview(msgspec.Struct, frozen=True):
    """authorization.k8s.io/v1."""

    status: AccessReviewStatus = AccessReviewStatus()
