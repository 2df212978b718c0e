package commitstep

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// Kind is the registered behaviour of a step. Name is a name like "fs.rename",
// never a Go type name, since stored steps outlive code.
type Kind struct {
	Name string
	// Version is the newest version of the parameters and evidence that this
	// code reads; it must read all older ones. New steps are stored with it.
	Version int
	Class   StepClass
	// Guards: its steps implement Guard; WantsPark: its steps implement OnPark.
	// Flags, so that the driver need not build a million finished steps to ask.
	Guards    bool
	WantsPark bool
	// Survey, if not nil, is called right before a batch of steps of this kind
	// is prepared or looked at, so that looks of many steps can share calls. It
	// only reads and only helps: what it could not see, each step's own Prepare
	// or Verify looks at. It is not called concurrently with methods of these
	// steps.
	Survey func(ctx context.Context, steps []CommitStep)
	// New turns a stored or planned step into its behaviour. It only decodes
	// and checks, without I/O; it may be called often and concurrently. During
	// planning the evidence is still empty. Errors should be *PlanError.
	New func(s Step) (CommitStep, error)
}

// Registry maps kind names to behaviours. It is immutable and safe for
// concurrent use.
type Registry struct{ kinds map[string]Kind }

// NewRegistry panics when two kinds share a name or one is incomplete: that is
// a mistake in the program, found at its start.
func NewRegistry(kinds ...Kind) *Registry {
	r := &Registry{kinds: make(map[string]Kind, len(kinds))}
	for _, k := range kinds {
		if k.Name == "" || k.Version < 1 || k.New == nil {
			panic(fmt.Sprintf("commitstep: incomplete kind %+v", k.Name))
		}
		if _, dup := r.kinds[k.Name]; dup {
			panic("commitstep: kind registered twice: " + k.Name)
		}
		r.kinds[k.Name] = k
	}
	return r
}

// Kind looks a kind up by name.
func (r *Registry) Kind(name string) (Kind, bool) {
	if r == nil {
		return Kind{}, false
	}
	k, ok := r.kinds[name]
	return k, ok
}

// Names lists the registered kinds, sorted.
func (r *Registry) Names() []string {
	if r == nil {
		return nil
	}
	var names []string
	for n := range r.kinds {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}

// Build returns the behaviour of a stored step. The error wraps
// [ErrUnsupported] for an unknown kind or a newer version, and [ErrDamaged] for
// a version that was never written. A kind that panics over a step is an error
// too: one odd step must not end the process that runs all others.
func (r *Registry) Build(s Step) (_ CommitStep, err error) {
	k, ok := r.Kind(s.Kind)
	if !ok {
		return nil, fmt.Errorf("%w: kind %q is not registered (known: %v)", ErrUnsupported, s.Kind, r.Names())
	}
	if s.Version > k.Version {
		return nil, fmt.Errorf("%w: %s version %d, this program knows up to %d; use a newer one", ErrUnsupported, s.Kind, s.Version, k.Version)
	}
	if s.Version < 1 {
		return nil, fmt.Errorf("step %d (%s): %w: version %d was never written", s.Index, s.Kind, ErrDamaged, s.Version)
	}
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("step %d (%s): the kind panicked over its parameters: %v", s.Index, s.Kind, r)
		}
	}()
	b, err := k.New(s)
	if err != nil {
		var pe *PlanError
		if errors.As(err, &pe) {
			return nil, err // it says where by itself
		}
		return nil, fmt.Errorf("%s: %w", Where(s.Stage, s.Index, s.Kind), err)
	}
	if b == nil {
		return nil, fmt.Errorf("step %d (%s): the kind gave no behaviour", s.Index, s.Kind)
	}
	return b, nil
}
