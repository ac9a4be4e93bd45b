"""What a kernel may say: every public function and annotation, each building its operation."""
