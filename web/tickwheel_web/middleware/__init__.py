"""What is around every request: headers of security, other origins, proxies."""
