"""gRPC over HTTP/2: calls come in as bytes, and answers go out as bytes. What they mean is not known here."""
