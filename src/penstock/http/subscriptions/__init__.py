"""`…/__ds/subscriptions`: subscriptions as resources, and the keys of webhooks."""
