package fsrename

import "github.com/commitstep/engine/commitstep"

// A step is built three times in its life, and what it is built from was nearly
// always written by this package. Reading that by hand costs a fifth of what the
// strict decoder does. After false nothing is known, and the decoder decides.

// quickParams reads parameters that hold only addresses and a length.
func quickParams(raw []byte, p *Params) bool {
	var from, to, length int
	ok := commitstep.PlainObject(raw, func(name, value []byte) (ok bool) {
		switch string(name) {
		case "from":
			from++
			p.From, ok = commitstep.PlainText(value)
		case "to":
			to++
			p.To, ok = commitstep.PlainText(value)
		case "length":
			length++
			var n int64
			n, ok = commitstep.PlainInt(value)
			p.Length = &n
		}
		return ok
	})
	return ok && from == 1 && to == 1 && length <= 1
}

// quickEvidence reads the usable evidence of a file that has an id.
func quickEvidence(raw []byte, e *evidence) bool {
	var id, size, mtime, device int
	ok := commitstep.PlainObject(raw, func(name, value []byte) (ok bool) {
		switch string(name) {
		case "id":
			id++
			e.Text, ok = commitstep.PlainText(value)
		case "size":
			size++
			e.Size, ok = commitstep.PlainInt(value)
		case "mtime":
			mtime++
			ok = e.MTime.UnmarshalJSON(value) == nil
		case "device":
			device++
			e.Device, ok = commitstep.PlainText(value)
		}
		return ok
	})
	return ok && id == 1 && size == 1 && mtime == 1 && device <= 1 && e.usable()
}
