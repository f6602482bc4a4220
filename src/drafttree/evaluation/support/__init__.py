"""Which architectures of transformers are exact: each is built small and random, and its texts are compared."""

from drafttree.evaluation.support.check import Finding, check_architecture, check_model
from drafttree.evaluation.support.random_models import architectures
from drafttree.evaluation.support.report import to_markdown
from drafttree.evaluation.support.sweep import SupportTable, check_all

__all__ = ["Finding", "SupportTable", "architectures", "check_all", "check_architecture", "check_model", "to_markdown"]
