"""What is lost when heads are ablated: the scan, its doubts and its views."""
