"""Access: who may do what. Rules, principals, and the credentials that make one known."""
