"""A requester that sends any message, well-formed or not, over any provider, and sees all that comes back.

``wire`` builds and reads headers of both versions by hand, independently of the codecs in :mod:`rpcrdma.wire`;
``requester`` is the connection, with the memory that it exposes. Nothing is checked on the way out. Whoever tests a
server uses it: :mod:`nfsd.conformance`, and this project's own tests.
"""
