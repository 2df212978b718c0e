package hivepublish

import (
	"cmp"
	"fmt"
)

// Suggestion is what the evidence speaks for. A person decides.
type Suggestion struct {
	// As is "published", "not-published", "wait" or "" where it speaks for
	// nothing.
	As  string `json:"as"`
	Why string `json:"why"`
}

// suggest says what the evidence speaks for.
func (p *Pack) suggest() {
	p.Suggestion = Suggestion{Why: "the evidence speaks for neither; look at the table"}
	for _, q := range p.Queries {
		if q.Live {
			p.Suggestion = Suggestion{"wait", fmt.Sprintf("by the server's list query %s (%s) may still take effect", q.QueryID, q.State)}
			return
		}
	}
	finished := p.Last != nil && p.Last.fate() == fateFinished
	switch {
	case p.Bound != "" && p.sent:
		p.Suggestion.Why = p.elsewhere()
		return
	case !p.Now.Known && p.Unreachable != "":
		p.Suggestion.Why = p.unreachable()
		return
	case !p.Now.Known:
		p.Suggestion.Why = "the target could not be looked at; gather again when it can be (hive probe)"
		return
	case len(p.Now.Metrics) == 0 && p.late:
		p.Suggestion.Why = "there was no time to ask the metrics; gather again (hive probe)"
		return
	case len(p.Now.Metrics) == 0 && finished:
		p.Suggestion.Why = "the operation finished, but the metrics have no answer: look at the table, or mend what they ask for and say retry"
		return
	case len(p.Now.Metrics) == 0:
		p.Suggestion.Why = "the metrics have no answer: look at the table and its files"
		return
	}
	want, same := differ(p.Want, p.Now.Metrics), equal(p.Before.Metrics, p.Now.Metrics)
	switch {
	case want == "" && !same:
		p.Suggestion = Suggestion{"published", "the target has changed since it was planned and holds what the plan wants: " + words(p.Now.Metrics)}
	case want == "" && same && finished:
		p.Suggestion = Suggestion{"published", "the operation finished and the target holds what the plan wants: " + words(p.Now.Metrics)}
	case want == "" && same:
		p.Suggestion.Why = "the target holds what the plan wants, and it did so before: the metrics cannot tell the old rows from the new ones; compare the files"
	case same && sameFiles(p.Before, p.Now):
		p.Suggestion = Suggestion{"not-published", "metrics and files are what they were when it was planned: " + words(p.Now.Metrics)}
	case same:
		p.Suggestion.Why = "the metrics are the old ones, the files are not or could not be compared"
	default:
		p.Suggestion = Suggestion{"not-published", "the target holds neither the old rows nor what the plan wants (" + want + "): publish it anew, which overwrites all of it"}
	}
	if p.Suggestion.As == "not-published" && p.sent && !p.listed {
		p.Suggestion = Suggestion{Why: p.Suggestion.Why + "; but whether the statement still runs could not be seen: make sure that it does not, it may yet take effect"}
	}
	for _, l := range p.Leftovers {
		if l.Files > 0 {
			p.Suggestion.Why += fmt.Sprintf("; %s holds %d files with %d bytes, perhaps the whole result", l.Path, l.Files, l.Bytes)
		}
	}
}

// unreachable is what to do while the server does not answer.
func (p *Pack) unreachable() string {
	at := cmp.Or(p.Bound, p.Server)
	return fmt.Sprintf("%s cannot be reached, and so neither the statement nor the target can be looked at: gather again when it answers, since a statement that is on its way to a server that restarts may still take effect; only if that server is gone for good can nothing land any more, and then say so with your decision (--server-gone)", at)
}

// elsewhere is what to do where the statement is another server's.
func (p *Pack) elsewhere() string {
	return fmt.Sprintf("the statement was sent to %s, where it may still run, and this program speaks to %s, which knows nothing of it: look with a program that speaks to %s; only if that server is gone for good, decide by the target and say so (--server-gone)", p.Server, p.Bound, p.Server)
}

func sameFiles(a, b TargetState) bool {
	if a.There != b.There {
		return false
	}
	if !a.There {
		return true
	}
	return a.Location == b.Location && a.Files != nil && b.Files != nil && a.Files.Error == "" && b.Files.Error == "" && !a.Files.Partial &&
		a.Files.Files == b.Files.Files && a.Files.Bytes == b.Files.Bytes && a.Files.Newest.Equal(b.Files.Newest)
}
