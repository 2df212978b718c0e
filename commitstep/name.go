package commitstep

import (
	"fmt"
	"strings"
)

// maxComponent keeps every path component well below the 255 bytes that file
// systems allow, with room for a suffix such as ".tmp".
const maxComponent = 200

const upperHex = "0123456789ABCDEF"

// EncodeName turns any text into a relative path that is safe in every file
// system: reversible with [DecodeName], different for different texts (also on
// file systems that fold case, normalise Unicode or drop a dot at the end),
// never hidden, never ".." and with no component above 200 bytes. a-z, 0-9, "-"
// and inner "." stay; every other byte is "%" and two digits. Long names are split into components, all
// but the last ending in "+", so that no name's path is a directory of
// another's. The empty text is "%".
func EncodeName(s string) string {
	if s == "" {
		return "%"
	}
	var out strings.Builder
	n := 0
	for i := 0; i < len(s); i++ {
		c := s[i]
		plain := c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-' || c == '.' && n > 0 && i < len(s)-1
		size := 3
		if plain {
			size = 1
		}
		if n+size > maxComponent-1 {
			out.WriteString("+/")
			n = 0
			if c == '.' {
				plain, size = false, 3
			}
		}
		if plain {
			out.WriteByte(c)
		} else {
			out.WriteByte('%')
			out.WriteByte(upperHex[c>>4])
			out.WriteByte(upperHex[c&15])
		}
		n += size
	}
	return out.String()
}

// DecodeName is the inverse of EncodeName. It refuses every path that
// EncodeName does not produce.
func DecodeName(p string) (string, error) {
	var out []byte
	if p != "%" {
		joined := strings.ReplaceAll(p, "+/", "")
		for i := 0; i < len(joined); i++ {
			c := joined[i]
			if c != '%' {
				out = append(out, c)
				continue
			}
			if i+2 >= len(joined) {
				return "", fmt.Errorf("commitstep: %q is no encoded name", p)
			}
			hi, lo := strings.IndexByte(upperHex, joined[i+1]), strings.IndexByte(upperHex, joined[i+2])
			if hi < 0 || lo < 0 {
				return "", fmt.Errorf("commitstep: %q is no encoded name", p)
			}
			out = append(out, byte(hi<<4|lo))
			i += 2
		}
	}
	if EncodeName(string(out)) != p {
		return "", fmt.Errorf("commitstep: %q is no encoded name", p)
	}
	return string(out), nil
}
