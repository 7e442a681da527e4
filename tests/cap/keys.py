"""Makes a key pair: keys.py STEM writes STEM.key (PKCS#8) and STEM.pub, both PEM."""

import sys

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

stem = sys.argv[1]
key = ec.generate_private_key(ec.SECP256R1())
with open(f"{stem}.key", "wb") as private:
    private.write(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
with open(f"{stem}.pub", "wb") as public:
    public.write(
        key.public_key().public_bytes(
            serialization.Encoding.PEM,
            serialization.PublicFormat.SubjectPublicKeyInfo,
        )
    )
