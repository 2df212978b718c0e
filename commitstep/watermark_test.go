package commitstep_test

import (
	"encoding/json"
	"math"
	"strings"
	"testing"

	"github.com/commitstep/engine/commitstep"
	"github.com/google/uuid"
	"pgregory.net/rapid"
)

func TestWatermarkJSON(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		in   string
		want commitstep.Watermark
		out  string
	}{
		{`null`, commitstep.None(), `null`},
		{`0`, commitstep.Int(0), `{"value":0}`},
		{` -7 `, commitstep.Int(-7), `{"value":-7}`},
		{`9223372036854775807`, commitstep.Int(math.MaxInt64), `{"value":9223372036854775807}`},
		{`-9223372036854775808`, commitstep.Int(math.MinInt64), `{"value":-9223372036854775808}`},
		{`9007199254740993`, commitstep.Int(9007199254740993), `{"value":9007199254740993}`}, // no float holds it
		{`""`, commitstep.Text(""), `{"value":""}`},
		{`"100"`, commitstep.Text("100"), `{"value":"100"}`},
		{`{"value":100}`, commitstep.Int(100), `{"value":100}`},
		{`{"value":"a","epoch":0}`, commitstep.Text("a"), `{"value":"a"}`},
		{`{"epoch":18446744073709551615,"value":1}`, commitstep.Int(1).InEpoch(math.MaxUint64), `{"value":1,"epoch":18446744073709551615}`},
		{`"\ud83d\ude00<"`, commitstep.Text("\U0001f600<"), `{"value":"😀\u003c"}`},
	} {
		var w commitstep.Watermark
		if err := json.Unmarshal([]byte(c.in), &w); err != nil || w != c.want {
			t.Errorf("%s is read as %s, %v; want %s", c.in, w, err, c.want)
			continue
		}
		if b, err := json.Marshal(w); err != nil || string(b) != c.out {
			t.Errorf("%s is written as %s, %v; want %s", w, b, err, c.out)
		}
		var again commitstep.Watermark
		if err := json.Unmarshal([]byte(c.out), &again); err != nil || again != w {
			t.Errorf("%s is read back as %s, %v", c.out, again, err)
		}
	}
}

func TestWatermarkJSONRefuses(t *testing.T) {
	t.Parallel()
	for in, says := range map[string]string{
		`1.5`: "whole number", `1.0`: "whole number", `1e3`: "whole number", `9223372036854775808`: "whole number", `-9223372036854775809`: "whole number",
		`true`: "whole number", `[]`: "whole number", `[1]`: "whole number",
		`{}`: "needs a value", `{"value":null}`: "needs a value", `{"epoch":1}`: "needs a value",
		`{"value":1.5}`: "whole number", `{"value":{}}`: "whole number", `{"value":1,"epoch":-1}`: "", `{"value":1,"epoch":1.5}`: "",
		`{"value":1,"epoch":18446744073709551616}`: "", `{"value":1,"epoc":1}`: "epoc", `{"value":1,"Epoch":1,"x":2}`: "x",
	} {
		w := commitstep.Int(42)
		err := json.Unmarshal([]byte(in), &w)
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s is read as %s, %v; want an error with %q", in, w, err, says)
		}
	}
	for _, bad := range []commitstep.Watermark{commitstep.Text("\xff"), commitstep.Text(strings.Repeat("x", commitstep.MaxWatermarkBytes+1))} {
		if b, err := json.Marshal(bad); err == nil {
			t.Errorf("%.20q… is written as %.40s", bad, b)
		}
		err := commitstep.WatermarkMove{WatermarkKey: commitstep.WatermarkKey{Job: "j", Source: "s"}, To: bad}.Check()
		requireRefusal(t, err, "cannot be stored")
	}
}

func anyWatermark() *rapid.Generator[commitstep.Watermark] {
	return rapid.Custom(func(t *rapid.T) commitstep.Watermark {
		var w commitstep.Watermark
		switch rapid.IntRange(0, 2).Draw(t, "kind") {
		case 0:
			return commitstep.None()
		case 1:
			w = commitstep.Int(rapid.OneOf(rapid.Int64Range(-2, 2), rapid.Int64()).Draw(t, "n"))
		default:
			w = commitstep.Text(rapid.SampledFrom([]string{"", "a", "b", "ab", "A", "\u00e9", "e\u0301", "1", "10", "9"}).Draw(t, "s"))
		}
		return w.InEpoch(rapid.Uint64Range(0, 2).Draw(t, "epoch"))
	})
}

func TestWatermarksProperty(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		a, b, c := anyWatermark().Draw(t, "a"), anyWatermark().Draw(t, "b"), anyWatermark().Draw(t, "c")
		j, err := json.Marshal(a)
		var back commitstep.Watermark
		if err != nil || json.Unmarshal(j, &back) != nil || back != a {
			t.Fatalf("%s is written as %s and read as %s, %v", a, j, back, err)
		}
		ab, ok := a.Compare(b)
		ba, ok2 := b.Compare(a)
		if ok != ok2 || ok && sign(ab) != -sign(ba) {
			t.Fatalf("%s to %s is %d, %v; the other way %d, %v", a, b, ab, ok, ba, ok2)
		}
		if ok && (ab == 0) != (a == b) {
			t.Fatalf("%s and %s compare as %d", a, b, ab)
		}
		bc, okBC := b.Compare(c)
		ac, okAC := a.Compare(c)
		if ok && okBC && okAC && ab <= 0 && bc <= 0 && ac > 0 {
			t.Fatalf("%s <= %s <= %s, but not the ends", a, b, c)
		}
		if a == b && a.String() != b.String() || a != b && a.String() == b.String() {
			t.Fatalf("%#v and %#v are shown as %q and %q", a, b, a, b)
		}
		// A move is planned exactly when it goes forward, and afterwards only its
		// own token is done.
		m := commitstep.WatermarkMove{WatermarkKey: commitstep.WatermarkKey{Job: "j", Source: "s"}, From: a, To: b, Token: uuid.New()}
		if good := m.Check() == nil; good != (ok && ab < 0) {
			t.Fatalf("%s -> %s: accepted %v", a, b, good)
		} else if !good {
			return
		}
		if v := m.Judge(a, uuid.Nil); v.Outcome != commitstep.NotDone {
			t.Fatalf("%s -> %s on %s: %s", a, b, a, v)
		}
		if v := m.Judge(b, m.Token); v.Outcome != commitstep.Done {
			t.Fatalf("%s -> %s on ours: %s", a, b, v)
		}
		if v := m.Judge(b, uuid.New()); v.Outcome != commitstep.Conflict || !strings.Contains(v.Evidence, "already past") {
			t.Fatalf("%s -> %s on another's %s: %s", a, b, b, v)
		}
		if v := m.Judge(c, uuid.New()); (v.Outcome == commitstep.NotDone) != (c == a) || v.Outcome == commitstep.Done || v.Outcome == commitstep.Unknown {
			t.Fatalf("%s -> %s on another's %s: %s", a, b, c, v)
		}
	})
}

func sign(n int) int { return max(-1, min(1, n)) }

func TestJudge(t *testing.T) {
	t.Parallel()
	token := uuid.New()
	m := commitstep.WatermarkMove{WatermarkKey: commitstep.WatermarkKey{Job: "kafka-hdfs", Source: "MyTopic:0"}, From: commitstep.Int(80), To: commitstep.Int(90), Token: token}
	for _, c := range []struct {
		stored commitstep.Watermark
		token  uuid.UUID
		want   commitstep.Outcome
		says   []string
	}{
		{commitstep.Int(80), uuid.New(), commitstep.NotDone, []string{"80"}},
		{commitstep.Int(90), token, commitstep.Done, []string{"our token"}},
		{commitstep.Int(90), uuid.New(), commitstep.Conflict, []string{"already past"}},
		{commitstep.Int(100), uuid.New(), commitstep.Conflict, []string{"already past", "100", "80", "90", "MyTopic:0", "kafka-hdfs"}},
		{commitstep.Int(85), uuid.New(), commitstep.Conflict, []string{"another", "85"}},
		{commitstep.Int(70), uuid.New(), commitstep.Conflict, []string{"another", "70"}},
		{commitstep.None(), uuid.Nil, commitstep.Conflict, []string{"none"}},
		{commitstep.Int(0).InEpoch(1), uuid.New(), commitstep.Conflict, []string{"already past", "epoch 1"}},
		{commitstep.Int(80).InEpoch(1), uuid.New(), commitstep.Conflict, []string{"epoch 1"}},
		{commitstep.Text("80"), uuid.New(), commitstep.Conflict, []string{`"80"`}},
	} {
		v := m.Judge(c.stored, c.token)
		if v.Outcome != c.want {
			t.Errorf("on %s: %s, want %s", c.stored, v, c.want)
		}
		for _, s := range c.says {
			if !strings.Contains(v.Evidence, s) {
				t.Errorf("on %s: %q does not say %q", c.stored, v.Evidence, s)
			}
		}
	}
	// A move without a token is never taken for done, whatever is stored.
	m.Token = uuid.Nil
	if v := m.Judge(commitstep.None(), uuid.Nil); v.Outcome == commitstep.Done {
		t.Errorf("without any token: %s", v)
	}
}

func TestNextKeepsTheEpoch(t *testing.T) {
	t.Parallel()
	if got := commitstep.Int(5).InEpoch(3).Next(6); got != commitstep.Int(6).InEpoch(3) {
		t.Errorf("got %s", got)
	}
	if got := commitstep.None().Next(6); got != commitstep.Int(6) {
		t.Errorf("got %s", got)
	}
	if got := commitstep.Text("a").InEpoch(2).NextText("b"); got != commitstep.Text("b").InEpoch(2) {
		t.Errorf("got %s", got)
	}
	if got := commitstep.None().InEpoch(7); !got.IsNone() || got != commitstep.None() {
		t.Errorf("none has an epoch: %#v", got)
	}
	if _, ok := commitstep.Text("5").Int64(); ok {
		t.Error("a text is a number")
	}
	if _, ok := commitstep.Int(5).TextValue(); ok {
		t.Error("a number is a text")
	}
}
