"""Which thread holds which element: register layouts, shared-memory layouts, their inference."""
