"""The engine in C, on `nghttp2`: where it was compiled."""
