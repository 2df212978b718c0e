package pgstore

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/commitstep/engine/commitstep"
	"github.com/google/uuid"
)

// PostgreSQL's text holds every character but NUL. Names may hold that one too,
// so it is written 01 02, and the byte that this takes, 01, is written 01 03.
// Both keep the bytewise order of names; 01 01 is left free to stand between
// the parts of a key, below every character.

const keySeparator = "\x01\x01"

var escaper = strings.NewReplacer("\x00", "\x01\x02", "\x01", "\x01\x03")

// toText is the form in which a name or message is stored as text. Messages
// that are no valid UTF-8 are made so; names always are.
func toText(s string) string {
	if !utf8.ValidString(s) {
		s = strings.ToValidUTF8(s, "\uFFFD")
	}
	if strings.IndexByte(s, 0) < 0 && strings.IndexByte(s, 1) < 0 {
		return s
	}
	return escaper.Replace(s)
}

// fromText is the inverse of toText.
func fromText(s string) string {
	if strings.IndexByte(s, 1) < 0 {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == 1 && i+1 < len(s) {
			i++
			if s[i] == 2 {
				b.WriteByte(0)
				continue
			}
			b.WriteByte(1)
			continue
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// hashOf names a tuple of texts by 128 bits, since an index entry cannot hold
// two names of a kilobyte each.
func hashOf(kind string, parts ...string) uuid.UUID {
	h := sha256.New()
	h.Write([]byte(kind))
	var n [4]byte
	for _, p := range parts {
		binary.BigEndian.PutUint32(n[:], uint32(len(p)))
		h.Write(n[:])
		h.Write([]byte(p))
	}
	var out uuid.UUID
	copy(out[:], h.Sum(nil))
	return out
}

func keyHash(k commitstep.Key) uuid.UUID { return hashOf("key", k.Job, k.Dataset) }

func lockHash(lock string) uuid.UUID { return hashOf("lock", lock) }

func planHash(k commitstep.Key, planID string) uuid.UUID {
	return hashOf("plan", k.Job, k.Dataset, planID)
}

func watermarkHash(k commitstep.WatermarkKey) uuid.UUID { return hashOf("watermark", k.Job, k.Source) }

func jobHash(job string) uuid.UUID { return hashOf("job", job) }

// sortText is what the database sorts keys by.
func sortText(k commitstep.Key) string { return toText(k.Job) + keySeparator + toText(k.Dataset) }

// orderBy and orderText are the sort of sequences in SQL: the index entry, and
// the whole key where that is cut off.
const (
	orderText  = `(job || E'\x01\x01' || dataset)`
	orderIndex = `left(job || E'\x01\x01' || dataset, 500)`
	// orderIndexS is the same where other tables have such columns too.
	orderIndexS = `left(s.job || E'\x01\x01' || s.dataset, 500)`
	// ofKey finds the sequences s of a key: $1 is its prefix, $2 its hash.
	ofKey = orderIndexS + ` = $1 AND s.key_hash = $2`
)

// keyPrefix is what the index has of a key.
func keyPrefix(k commitstep.Key) string { return cut(sortText(k)) }

// cut is orderIndex in Go: the first 500 characters.
func cut(s string) string {
	n := 0
	for i := range s {
		if n == 500 {
			return s[:i]
		}
		n++
	}
	return s
}

func damaged(format string, a ...any) error {
	return fmt.Errorf("%w: %s", commitstep.ErrDamaged, fmt.Sprintf(format, a...))
}
