"""What is lost when heads are ablated: the scan, its doubts and its views."""

from attnviz import _callable

_callable(__name__)
