"""The server's side of STP: tables over streams, Notify, and mirrors."""
