"""What the specifications demand of a server, put to any server: ``rdma-nfsd conformance``.

``demands`` are the demands in our own words; ``link`` is what a question is written with; ``rfc8166``, ``others`` and
``basics`` are the questions; ``run`` puts them, ``relay`` records the octets of each, ``report`` says what was found.
Nothing is asked by way of the server's own code.
"""
