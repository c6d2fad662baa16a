"""Canonical and normalized texts and fingerprints, compared with vectors of the Confluent registry and the Avro
project.
"""

import hashlib

import pytest

from headrace.avro_schema import (
    canonical_text,
    crc64_avro,
    fingerprint_crc64,
    fingerprint_md5,
    fingerprint_sha256,
    normalized_text,
    parse_schema,
    parsing_canonical_form,
)
from headrace.avro_schema.text import java_double


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ('{"type":"string"}', '"string"'),
        ('{ "type" : "string", "foo" : "bar" }', '{"type":"string","foo":"bar"}'),
        ('{"type":"long","logicalType":"timestamp-millis"}', '{"type":"long","logicalType":"timestamp-millis"}'),
        (
            '{"type":"record","name":"a.b.C","fields":[{"name":"f","type":{"type":"fixed","name":"a.b.D","size":4}},'
            '{"name":"m","type":{"type":"map","values":"a.b.D"}}]}',
            '{"type":"record","name":"C","namespace":"a.b","fields":[{"name":"f","type":{"type":"fixed","name":"D",'
            '"size":4}},{"name":"m","type":{"type":"map","values":"D"}}]}',
        ),
        (
            '{"doc":"d","x":1,"aliases":["B"],"fields":[{"x":{"b":1,"a":1.10},"aliases":["z"],"order":"descending",'
            '"default":1.10,"doc":"","type":"double","name":"f"}],"name":"A","type":"record"}',
            '{"type":"record","name":"A","doc":"d","fields":[{"name":"f","type":"double","doc":"","default":1.1,'
            '"order":"descending","aliases":["z"],"x":{"b":1,"a":1.1}}],"x":1,"aliases":["B"]}',
        ),
        (
            '{"type":"enum","name":"n.E","symbols":["A"],"default":"A","doc":"d","p":null,"aliases":["m.F"]}',
            '{"type":"enum","name":"E","namespace":"n","doc":"d","symbols":["A"],"default":"A","p":null,'
            '"aliases":["m.F"]}',
        ),
        (
            '{"type":"record","name":"A","fields":[{"name":"f","type":"int","order":"ascending"}]}',
            '{"type":"record","name":"A","fields":[{"name":"f","type":"int"}]}',
        ),
        (
            '{"type":"string","note":"\\u001f\\u00e9\\u2028\\u007f\\/<\\\\u001f"}',
            '{"type":"string","note":"\\u001Fé\u2028\x7f/<\\\\u001f"}',
        ),
    ],
)
def test_canonical_text(text, canonical):
    assert canonical_text(parse_schema(text)) == canonical


def test_guid_is_md5_of_canonical_text():
    # Published guid of the schema "string": 095d71cf-1255-6b9d-5e33-0ad575b3df5d.
    digest = hashlib.md5(canonical_text(parse_schema('{"type":"string"}')).encode()).hexdigest()
    assert digest == "095d71cf12556b9d5e330ad575b3df5d"


@pytest.mark.parametrize(
    ("text", "normalized"),
    [
        (
            '{"type":"record","name":"A","aliases":["C","B"],"b":1,"a":{"d":1,"c":[{"f":1,"e":2}]},'
            '"fields":[{"name":"f","type":"double","default":1,"aliases":["z","y"]}]}',
            '{"type":"record","name":"A","fields":[{"name":"f","type":"double","default":1.0,"aliases":["y","z"]}],'
            '"a":{"c":[{"e":2,"f":1}],"d":1},"b":1,"aliases":["B","C"]}',
        ),
        (
            '{"type":"bytes","a":1,"scale":0,"precision":4,"logicalType":"decimal"}',
            '{"type":"bytes","logicalType":"decimal","precision":4,"a":1}',
        ),
        # Only a valid logical type comes first.
        (
            '{"type":"bytes","a":1,"precision":1,"scale":2,"logicalType":"decimal"}',
            '{"type":"bytes","a":1,"logicalType":"decimal","precision":1,"scale":2}',
        ),
        (
            '{"type":"map","values":"int","logicalType":"date","a":1}',
            '{"type":"map","values":"int","a":1,"logicalType":"date"}',
        ),
        # Aliases are sorted by full name, but written without the namespace of their type.
        (
            '{"type":"fixed","name":"m.F","size":1,"aliases":["B","a.C"]}',
            '{"type":"fixed","name":"F","namespace":"m","size":1,"aliases":["a.C","B"]}',
        ),
        # Empty documentation of a type is dropped, that of a field is preserved.
        (
            '{"type":"error","name":"R","doc":"","fields":[{"name":"f","type":"int","doc":""}]}',
            '{"type":"record","name":"R","fields":[{"name":"f","type":"int","doc":""}]}',
        ),
        # Defaults are converted to the precision of their type, and their members are sorted.
        (
            '{"type":"record","name":"R","fields":[{"name":"f","type":"float","default":0.123456789},'
            '{"name":"g","type":"float","default":16777217},{"name":"h","type":"double","default":0.123456789},'
            '{"name":"m","type":{"type":"map","values":"float"},"default":{"b":1,"a":2}}]}',
            '{"type":"record","name":"R","fields":[{"name":"f","type":"float","default":0.12345679},'
            '{"name":"g","type":"float","default":1.6777216E7},{"name":"h","type":"double","default":0.123456789},'
            '{"name":"m","type":{"type":"map","values":"float"},"default":{"a":2.0,"b":1.0}}]}',
        ),
        # Defaults out of range are unchanged.
        (
            '{"type":"record","name":"R","fields":[{"name":"f","type":"float","default":1e39},'
            '{"name":"g","type":"double","default":1' + "0" * 350 + "}]}",
            '{"type":"record","name":"R","fields":[{"name":"f","type":"float","default":1.0E39},'
            '{"name":"g","type":"double","default":1' + "0" * 350 + "}]}",
        ),
        # Preserved, although the Confluent registry drops a default that does not match the union's first branch.
        (
            '{"type":"record","name":"R","fields":[{"name":"f","type":["null","double"],"default":1}]}',
            '{"type":"record","name":"R","fields":[{"name":"f","type":["null","double"],"default":1}]}',
        ),
    ],
)
def test_normalized_text(text, normalized):
    assert normalized_text(parse_schema(text)) == normalized
    assert normalized_text(parse_schema(normalized)) == normalized


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.0"),
        (-0.0, "-0.0"),
        (1.1, "1.1"),
        (100.0, "100.0"),
        (0.001, "0.001"),
        (0.0001, "1.0E-4"),
        (9999999.0, "9999999.0"),
        (1e7, "1.0E7"),
        (12345678.9, "1.23456789E7"),
        (-1.5e300, "-1.5E300"),
        (5e-324, "5.0E-324"),
    ],
)
def test_java_double_matches_java(value, text):
    assert java_double(value) == text


def test_parsing_canonical_form_drops_irrelevant_attributes():
    text = (
        '{"type":"error","name":"R","namespace":"n","doc":"d","aliases":["X"],"fields":[{"name":"a","doc":"d",'
        '"type":{"type":"fixed","name":"F","size":2},"default":"ab"},{"name":"b","type":["null","F"]}]}'
    )
    assert parsing_canonical_form(parse_schema(text)) == (
        '{"name":"n.R","type":"record","fields":[{"name":"a","type":{"name":"n.F","type":"fixed","size":2}},'
        '{"name":"b","type":["null","n.F"]}]}'
    )


def test_fingerprints_of_the_specification():
    schema = parse_schema('"int"')
    assert fingerprint_crc64(schema) == 0x7275D51A3F395C8F
    assert crc64_avro(b"") == 0xC15D213AA4D7A795
    assert fingerprint_md5(schema) == "ef524ea1b91e73173d938ade36c1db32"
    assert fingerprint_sha256(schema) == "3f2b87a9fe7cc9b13835598c3981cd45e3e355309e5090aa0933d7becb6fba45"
