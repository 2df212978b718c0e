package boltstore

import (
	"strconv"

	"github.com/commitstep/engine/commitstep"
)

// encodeSums returns the payload, which every commit writes, with room for an
// envelope before it.
func encodeSums(all *sums) []byte {
	b := make([]byte, commitstep.EnvelopeSize, commitstep.EnvelopeSize+len(all)*48+2)
	b = append(b, '[')
	for i := range all.stored() {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, `{"n":`...)
		b = strconv.AppendUint(b, all[i].Count, 10)
		b = append(b, `,"h":"`...)
		b = strconv.AppendUint(b, all[i].Hash, 10)
		b = append(b, `"}`...)
	}
	b = append(b, ']')
	return b
}
