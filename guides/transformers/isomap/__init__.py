"""Incremental Isomap: graphs of neighbours, geodesic distances and embeddings that follow new rows."""
