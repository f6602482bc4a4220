"""Which architectures of transformers are exact: each is built small and random, and its texts are compared."""

from drafttree_lab.support.check import Finding, check_architecture, check_images, check_model, check_popular
from drafttree_lab.support.popular_configs import POPULAR
from drafttree_lab.support.random_models import architectures
from drafttree_lab.support.report import popular_to_markdown, to_markdown
from drafttree_lab.support.sweep import SupportTable, check_all, checked_names

__all__ = [
    "POPULAR",
    "Finding",
    "SupportTable",
    "architectures",
    "check_all",
    "check_architecture",
    "check_images",
    "check_model",
    "check_popular",
    "checked_names",
    "popular_to_markdown",
    "to_markdown",
]
