"""Questions to the API server about a caller: whose token this is, what that user may do, and who asks."""

import msgspec


class ReviewedUser(msgspec.Struct, frozen=True, omit_defaults=True):
    """Who a token belongs to. All of it goes into the question of what the user may do."""

    username: str = ""
    uid: str = ""
    groups: list[str] = []
    extra: dict[str, list[str]] = {}


class ReviewStatus(msgspec.Struct, frozen=True, rename="camel"):
    """What the API server says: of a token, whose it is; of who asks, who that is; and whether the user may."""

    authenticated: bool = False
    user: ReviewedUser = ReviewedUser()
    user_info: ReviewedUser = ReviewedUser()
    allowed: bool = False


class Review(msgspec.Struct, frozen=True):
    """TokenReview and SelfSubjectReview of authentication.k8s.io/v1, and SubjectAccessReview of authorization.k8s.io/v1."""

    status: ReviewStatus = ReviewStatus()
