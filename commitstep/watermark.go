package commitstep

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
)

// WatermarkKey names one position of one job in one source ("MyTopic:0").
type WatermarkKey struct {
	Job    string `json:"job"`
	Source string `json:"source"`
}

// Lock is the lock that a plan moving this watermark holds. A lock's text is
// bounded like every name, a job and a source together are not.
func (k WatermarkKey) Lock() string {
	l := "watermark:" + strconv.Itoa(len(k.Job)) + ":" + k.Job + ":" + k.Source
	if len(l) > MaxNameBytes {
		l = fmt.Sprintf("watermark-sha256:%x", sha256.Sum256([]byte(l)))
	}
	return l
}

// Watermark says how far a source was read: nothing yet (the zero value), or a
// value, an int64 or a text, in a source epoch. The source epoch grows when
// the source is recreated and its positions start again.
//
// In JSON it is null, or {"value": 100} / {"value": "2015-12-09"}, with
// "epoch" when that is not 0. For input a bare number or text stands for a
// value of epoch 0.
type Watermark struct {
	set    bool
	isText bool
	num    int64
	text   string
	epoch  uint64
}

// None is the watermark of a source that was never read.
func None() Watermark { return Watermark{} }

// Int is a numeric watermark of source epoch 0; see [Watermark.InEpoch].
func Int(v int64) Watermark { return Watermark{set: true, num: v} }

// Text is a textual watermark of source epoch 0. Texts are compared for
// equality and, to tell "already past", bytewise.
func Text(s string) Watermark { return Watermark{set: true, isText: true, text: s} }

// InEpoch returns the same value in another source epoch.
func (w Watermark) InEpoch(epoch uint64) Watermark {
	if w.set {
		w.epoch = epoch
	}
	return w
}

// Next is the numeric watermark v in the same source epoch as w (epoch 0 when
// w is none): from.Next(100).
func (w Watermark) Next(v int64) Watermark { return Int(v).InEpoch(w.epoch) }

// NextText is the textual watermark s in the same source epoch as w.
func (w Watermark) NextText(s string) Watermark { return Text(s).InEpoch(w.epoch) }

// IsNone reports that the source was never read.
func (w Watermark) IsNone() bool { return !w.set }

// Int64 returns the value and true if it is numeric.
func (w Watermark) Int64() (int64, bool) { return w.num, w.set && !w.isText }

// TextValue returns the value and true if it is textual.
func (w Watermark) TextValue() (string, bool) { return w.text, w.set && w.isText }

// Epoch is the source epoch, 0 for none.
func (w Watermark) Epoch() uint64 { return w.epoch }

// Compare orders two watermarks: none first, then by epoch, then by value. ok
// is false when a number meets a text in one epoch.
func (w Watermark) Compare(o Watermark) (c int, ok bool) {
	switch {
	case !w.set || !o.set:
		return b2i(w.set) - b2i(o.set), true
	case w.epoch != o.epoch:
		if w.epoch < o.epoch {
			return -1, true
		}
		return 1, true
	case w.isText != o.isText:
		return 0, false
	case w.isText:
		return bytes.Compare([]byte(w.text), []byte(o.text)), true
	case w.num < o.num:
		return -1, true
	case w.num > o.num:
		return 1, true
	}
	return 0, true
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

func (w Watermark) String() string {
	switch {
	case !w.set:
		return "none"
	case w.isText && w.epoch != 0:
		return fmt.Sprintf("%q (epoch %d)", w.text, w.epoch)
	case w.isText:
		return fmt.Sprintf("%q", w.text)
	case w.epoch != 0:
		return fmt.Sprintf("%d (epoch %d)", w.num, w.epoch)
	}
	return fmt.Sprint(w.num)
}

type watermarkJSON struct {
	Value json.RawMessage `json:"value"`
	Epoch uint64          `json:"epoch,omitempty"`
}

// MarshalJSON writes null or an object. A text that is not valid UTF-8 is
// refused, since JSON would give back another one.
func (w Watermark) MarshalJSON() ([]byte, error) {
	if !w.set {
		return []byte("null"), nil
	}
	if err := w.checkText(); err != nil {
		return nil, fmt.Errorf("watermark: %w", err)
	}
	b := append(make([]byte, 0, 48), `{"value":`...)
	if w.isText {
		text, err := json.Marshal(w.text)
		if err != nil {
			return nil, err
		}
		b = append(b, text...)
	} else {
		b = strconv.AppendInt(b, w.num, 10)
	}
	if w.epoch != 0 {
		b = strconv.AppendUint(append(b, `,"epoch":`...), w.epoch, 10)
	}
	return append(b, '}'), nil
}

// UnmarshalJSON reads what MarshalJSON writes, and a bare number or text.
// Numbers that are not whole or do not fit an int64 are refused, never rounded.
func (w *Watermark) UnmarshalJSON(b []byte) error {
	b = bytes.TrimSpace(b)
	*w = Watermark{}
	if bytes.Equal(b, []byte("null")) {
		return nil
	}
	if w.quick(b) {
		return nil
	}
	raw, epoch := json.RawMessage(b), uint64(0)
	if len(b) > 0 && b[0] == '{' {
		var j watermarkJSON
		d := json.NewDecoder(bytes.NewReader(b))
		d.DisallowUnknownFields()
		if err := d.Decode(&j); err != nil {
			return fmt.Errorf("watermark: %w", err)
		}
		if len(j.Value) == 0 || bytes.Equal(j.Value, []byte("null")) {
			return fmt.Errorf("watermark: an object needs a value; none is written null")
		}
		raw, epoch = j.Value, j.Epoch
	}
	if len(raw) > 0 && raw[0] == '"' {
		var s string
		if err := json.Unmarshal(raw, &s); err != nil {
			return fmt.Errorf("watermark: %w", err)
		}
		*w = Text(s).InEpoch(epoch)
		return nil
	}
	var n int64
	if err := json.Unmarshal(raw, &n); err != nil {
		return fmt.Errorf("watermark: %s is neither a text nor a whole number from %d to %d", raw, int64(math.MinInt64), int64(math.MaxInt64))
	}
	*w = Int(n).InEpoch(epoch)
	return nil
}

// quick reads an object as MarshalJSON writes it; after false, w is what it was
// and nothing is known of b.
func (w *Watermark) quick(b []byte) bool {
	var v Watermark
	var epoch uint64
	values, epochs := 0, 0
	ok := PlainObject(b, func(name, value []byte) bool {
		switch string(name) {
		case "value":
			values++
			if text, ok := PlainText(value); ok {
				v = Text(text)
				return true
			}
			n, ok := PlainInt(value)
			v = Int(n)
			return ok
		case "epoch":
			epochs++
			n, err := strconv.ParseUint(string(value), 10, 64)
			epoch = n
			return err == nil
		}
		return false
	})
	if !ok || values != 1 || epochs > 1 {
		return false
	}
	*w = v.InEpoch(epoch)
	return true
}

// WatermarkMove is a compare-and-set of one watermark: from what the job read
// before its source, to what is true once its data is published.
type WatermarkMove struct {
	WatermarkKey
	From Watermark `json:"from"`
	To   Watermark `json:"to"`
	// Token is the step's; a stored watermark that carries it is this move.
	Token uuid.UUID `json:"token"`
}

// MaxWatermarkBytes is the longest textual watermark, in bytes. A header holds
// those of all moves.
const MaxWatermarkBytes = 16 << 10

func (w Watermark) checkText() error {
	switch {
	case len(w.text) > MaxWatermarkBytes:
		return fmt.Errorf("a text of %d bytes is longer than the %d allowed", len(w.text), MaxWatermarkBytes)
	case !utf8.ValidString(w.text):
		return fmt.Errorf("the text %q is not valid UTF-8", w.text)
	}
	return nil
}

// Check reports a [*PlanError] when the move is malformed: no target, a lower
// source epoch, a value that does not grow in the same epoch, or a text that
// cannot be stored.
func (m WatermarkMove) Check() error {
	where := func() string { return fmt.Sprintf("watermark %q", m.Source) }
	if err := CheckName("watermark source", m.Source); err != nil {
		return err
	}
	if m.To.IsNone() {
		return &PlanError{Where: where(), Problem: "has no value to set", Hint: "give `to` a value"}
	}
	for _, w := range []Watermark{m.From, m.To} {
		if err := w.checkText(); err != nil {
			return &PlanError{Where: where(), Problem: "cannot be stored", Err: err, Hint: "positions are whole numbers or short UTF-8 texts"}
		}
	}
	c, ok := m.From.Compare(m.To)
	if !ok {
		return &PlanError{Where: where(), Problem: fmt.Sprintf("changes from %s to %s within one source epoch", m.From, m.To), Hint: "raise the epoch when the source changes its kind of position"}
	}
	if c >= 0 {
		return &PlanError{Where: where(), Problem: fmt.Sprintf("does not move forward from %s to %s", m.From, m.To), Hint: "a lower value needs a higher source epoch"}
	}
	return nil
}

// WatermarkValue is a stored watermark with where it came from.
type WatermarkValue struct {
	WatermarkKey
	Watermark Watermark `json:"watermark"`
	Token     uuid.UUID `json:"token"`
	Sequence  uuid.UUID `json:"sequence"` // zero when a person set it
	SetAt     time.Time `json:"setAt"`
	// Unaccepted is set in an adopted store until a person accepted the job's
	// watermarks, since they may be old.
	Unaccepted bool `json:"unaccepted,omitempty"`
}

// Judge is the verdict on a move, given what is stored now (none and zero
// token when nothing is).
func (m WatermarkMove) Judge(stored Watermark, token uuid.UUID) Verdict {
	if token == m.Token && token != uuid.Nil {
		return IsDone("watermark %q of job %q carries our token at %s", m.Source, m.Job, stored)
	}
	if stored == m.From {
		return IsNotDone("watermark %q of job %q is %s as planned", m.Source, m.Job, stored)
	}
	what := "is another"
	if c, ok := stored.Compare(m.To); ok && c >= 0 {
		what = "is already past"
	}
	return InConflict("watermark %q of job %q %s: stored %s, planned from %s to %s", m.Source, m.Job, what, stored, m.From, m.To)
}
