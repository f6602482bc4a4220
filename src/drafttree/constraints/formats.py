"""Patterns of the formats of JSON Schema, in its dialect of regular expressions (ECMA-262)."""

UNENFORCED_FORMATS = {"iri", "iri-reference", "idn-email", "idn-hostname", "regex"}
"""Formats of the specification that cannot be enforced; other formats outside of `FORMATS` are only annotations."""
DATE = r"(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
DATE += r"|02-(?:0[1-9]|1[0-9]|2[0-8]))"
DATE += r"|(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29)"
TIME = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]+)?(?:[zZ]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
YEARS = r"[0-9]+Y(?:[0-9]+M(?:[0-9]+D)?)?|[0-9]+M(?:[0-9]+D)?|[0-9]+D"
HOURS = r"T(?:[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S)"
OCTET = r"(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
IPV4 = rf"(?:{OCTET}\.){{3}}{OCTET}"
GROUP = "[0-9a-fA-F]{1,4}"
IPV6 = rf"(?:(?:{GROUP}:){{7}}{GROUP}|(?:(?:{GROUP}:){{0,6}}{GROUP})?::"
IPV6 += "".join(rf"|(?:(?:{GROUP}:){{0,{5 - n}}}{GROUP})?::(?:{GROUP}:){{{n}}}{GROUP}" for n in range(6))
IPV6 += rf"|::(?:{GROUP}:){{6}}{GROUP})"
ATOM = r"[a-zA-Z0-9!#$%&'*+/=?^_`{|}~-]+"
LABEL = r"[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?"
NAMED = r"[A-Za-z0-9._~!$&'()*+,;=-]|%[0-9A-Fa-f]{2}"
SEGMENT = rf"(?:{NAMED}|[:@])*"
REST = rf"(?:{NAMED}|[:@/?])*"
FUTURE = r"v[0-9a-fA-F]+\.[A-Za-z0-9._~!$&'()*+,;=:-]+"
HOST = rf"(?:\[(?:{IPV6}|{FUTURE})\]|(?:{NAMED})*)"
AUTHORITY = rf"//(?:(?:{NAMED}|:)*@)?{HOST}(?::[0-9]*)?(?:/{SEGMENT})*"
PATH = rf"/?(?:{NAMED}|[:@])+(?:/{SEGMENT})*|/?"
VARIABLE = r"[A-Za-z0-9_]+(?::[1-9][0-9]{0,3}|\*)?"
FORMATS = {
    "date": (rf"^{DATE}$",),
    "time": (rf"^{TIME}$",),
    "date-time": (rf"^{DATE}[tT]{TIME}$",),
    "duration": (rf"^P(?:(?:{YEARS})(?:{HOURS})?|{HOURS}|[0-9]+W)$",),
    "email": (rf"^{ATOM}(?:\.{ATOM})*@(?:{LABEL}(?:\.{LABEL})*|\[{IPV4}\])$",),
    # The second refuses two hyphens, and so all of Punycode.
    "hostname": (
        r"^[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?(?:\.[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?)*$",
        r"^(?:[a-zA-Z0-9]+(?:-[a-zA-Z0-9]+)*\.?)+$",
    ),
    "ipv4": (rf"^{IPV4}$",),
    "ipv6": (rf"^{IPV6}$",),
    "uuid": (r"^[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$",),
    "uri": (rf"^[A-Za-z][A-Za-z0-9+.-]*:(?:{AUTHORITY}|{PATH})(?:\?{REST})?(?:#{REST})?$",),
    "json-pointer": (r"^(?:/(?:[^/~]|~[01])*)*$",),
    "relative-json-pointer": (r"^(?:0|[1-9][0-9]*)(?:#|(?:/(?:[^/~]|~[01])*)*)$",),
    "uri-reference": (
        rf"^(?:[A-Za-z][A-Za-z0-9+.-]*:)?(?://(?:(?:{NAMED}|:)*@)?(?:{NAMED})*(?::[0-9]*)?(?:/{SEGMENT})*"
        rf"|/?(?:{NAMED})+(?:/{SEGMENT})*|/?)(?:\?{REST})?(?:#{REST})?$",
    ),
    "uri-template": (rf"^(?:{NAMED}|[:@/?#]|\{{[+#./;?&]?{VARIABLE}(?:,{VARIABLE})*\}})*$",),
}
"""By format, the patterns, all of which a text must match."""
LONGEST_HOSTNAME = 253
