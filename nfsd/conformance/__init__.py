"""What the specifications demand of a server, put to any server: ``rdma-nfsd conformance``.

``demands`` are the demands in our own words; ``link`` is what a question is written with; ``basics``, ``sessions``,
``callbacks``, ``rfc8166``, ``others``, ``version_two`` and ``randomly`` are the questions; ``run`` puts them, ``relay``
records the octets of each, ``report`` says what was found.
Nothing is asked by way of the server's own code.
"""
