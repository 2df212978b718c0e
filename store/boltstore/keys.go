package boltstore

import (
	"bytes"
	"encoding/binary"
	"errors"
	"strings"

	"github.com/commitstep/engine/commitstep"
	"github.com/google/uuid"
)

// Keys of several texts must sort like the texts, one after the other, and
// come back byte for byte. Every text but the last is therefore ended by 00 01,
// and a NUL inside it is written 00 FF, which sorts after the end.

func appendPart(b []byte, text string) []byte {
	for {
		i := strings.IndexByte(text, 0)
		if i < 0 {
			return append(append(b, text...), 0, 1)
		}
		b = append(append(b, text[:i]...), 0, 0xff)
		text = text[i+1:]
	}
}

var errKey = errors.New("the key is malformed")

// cutPart is the inverse of appendPart; rest is what follows.
func cutPart(b []byte) (text string, rest []byte, err error) {
	var out []byte
	for {
		i := bytes.IndexByte(b, 0)
		if i < 0 || i+1 >= len(b) {
			return "", nil, errKey
		}
		out = append(out, b[:i]...)
		switch b[i+1] {
		case 1:
			return string(out), b[i+2:], nil
		case 0xff:
			out = append(out, 0)
			b = b[i+2:]
		default:
			return "", nil, errKey
		}
	}
}

// pairKey is the key of (job, dataset) and of (job, source).
func pairKey(job, second string) []byte {
	b := make([]byte, 0, len(job)+len(second)+2)
	return append(appendPart(b, job), second...)
}

func parsePair(b []byte) (first, second string, err error) {
	first, rest, err := cutPart(b)
	if err != nil {
		return "", "", err
	}
	return first, string(rest), nil
}

func liveKey(k commitstep.Key) []byte { return pairKey(k.Job, k.Dataset) }

func parseLiveKey(b []byte) (commitstep.Key, error) {
	job, dataset, err := parsePair(b)
	return commitstep.Key{Job: job, Dataset: dataset}, err
}

// tripleKey is the key of a plan id, and with a sequence id as the last part
// that of a cleaning sequence.
func tripleKey(k commitstep.Key, last string) []byte {
	b := make([]byte, 0, len(k.Job)+len(k.Dataset)+len(last)+4)
	return append(appendPart(appendPart(b, k.Job), k.Dataset), last...)
}

func parseTriple(b []byte) (k commitstep.Key, last string, err error) {
	if k.Job, b, err = cutPart(b); err != nil {
		return k, "", err
	}
	if k.Dataset, b, err = cutPart(b); err != nil {
		return k, "", err
	}
	return k, string(b), nil
}

func cleaningKey(k commitstep.Key, id uuid.UUID) []byte { return tripleKey(k, string(id[:])) }

// pageKey is the key of a page of steps and of a page of progress.
func pageKey(id uuid.UUID, page int) []byte {
	b := make([]byte, 20)
	copy(b, id[:])
	binary.BigEndian.PutUint32(b[16:], uint32(page))
	return b
}

func parsePageKey(b []byte) (id uuid.UUID, page int, err error) {
	if len(b) != 20 {
		return uuid.Nil, 0, errKey
	}
	return uuid.UUID(b[:16]), int(binary.BigEndian.Uint32(b[16:])), nil
}

func parseID(b []byte) (uuid.UUID, error) {
	if len(b) != 16 {
		return uuid.Nil, errKey
	}
	return uuid.UUID(b), nil
}

func numberKey(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }
