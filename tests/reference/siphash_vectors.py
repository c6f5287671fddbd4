"""SipHash with 128 bits of output, key 00 01 .. 0f, message 00 01 .. (length - 1), in hex.

Those of SipHash-2-4 are published with its authors' reference implementation (vectors_sip128). For
1 and 3 rounds there are none: those are OpenSSL 3.0.19's, whose SIPHASH takes the rounds as
parameters (c-rounds, d-rounds) and gives the published ones for 2 and 4.
"""

KEY = bytes(range(16))

SIPHASH_2_4_128 = {
    0: "a3817f04ba25a8e66df67214c7550293",
    1: "da87c1d86b99af44347659119b22fc45",
    2: "8177228da4a45dc7fca38bdef60affe4",
    3: "9c70b60c5267a94e5f33b6b02985ed51",
    4: "f88164c12d9c8faf7d0f6e7c7bcd5579",
    5: "1368875980776f8854527a07690e9627",
    6: "14eeca338b208613485ea0308fd7a15e",
    7: "a1f1ebbed8dbc153c0b84aa61ff08239",
    8: "3b62a9ba6258f5610f83e264f31497b4",
    15: "5493e99933b0a8117e08ec0f97cfc3d9",
    63: "5150d1772f50834a503e069a973fbd7c",
}

SIPHASH_1_3_128 = {
    0: "e77ebcb22788a5befd62db6add303001",
    1: "fc6f370460d3eda85e0573cc2b2ff063",
    2: "75787f090569839b855bc9548c6aea95",
    3: "6bc5ccfa1edcf79f4823187712ebd743",
    7: "1084b923f2aae0c3a62f2ec80848ab77",
    8: "aa12fee1d5e3dab4724f16ab35f9c799",
    9: "81ddb8042cf33994f4720e0094137c42",
    15: "c17e5505b2bd526c2921cdec1e7e0109",
    16: "d0a8d95715518eebb513b0f83d9e1793",
    63: "4c5800e34efe426f079f6b0aa75260ad",
}
