"""Security contexts of RPCSEC_GSS (RFC 2203): the mechanism, contexts and their windows, who becomes whom."""
