"""Which architectures of transformers are exact: each is built small and random, and its texts are compared."""

from drafttree_lab.support.check import Finding, check_architecture, check_model
from drafttree_lab.support.random_models import architectures
from drafttree_lab.support.report import to_markdown
from drafttree_lab.support.sweep import SupportTable, check_all

__all__ = ["Finding", "SupportTable", "architectures", "check_all", "check_architecture", "check_model", "to_markdown"]
