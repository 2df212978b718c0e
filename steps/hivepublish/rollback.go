package hivepublish

import (
	"encoding/json"
	"fmt"

	"github.com/commitstep/engine/commitstep"
)

// RollbackSpec is the step that points a partition back to where it lay before a
// hive.stage_and_swap or hive.swap_location published it. It goes into a plan of
// its own, and is planned, checked and audited like every publish: the plan is
// refused when the partition does not lie where the publish had put it any more, or
// when the old directory is gone. s is the published step as it is stored, with
// its evidence.
func RollbackSpec(s commitstep.Step) (commitstep.StepSpec, error) {
	var spec commitstep.StepSpec
	bad := func(format string, a ...any) (commitstep.StepSpec, error) {
		return spec, fmt.Errorf("%s: cannot be rolled back: %s", commitstep.Where(s.Stage, s.Index, s.Kind), fmt.Sprintf(format, a...))
	}
	var ev evidence
	if err := json.Unmarshal(s.Evidence, &ev); err != nil {
		return bad("its evidence cannot be read: %v", err)
	}
	back := Swap{Location: ev.Location, Back: true}
	switch s.Kind {
	case StageAndSwapName:
		var p Stage
		if err := commitstep.DecodeParams(s, &p); err != nil {
			return spec, err
		}
		back.Target, back.From = p.Target, ev.Base
	case SwapLocationName:
		var p Swap
		if err := commitstep.DecodeParams(s, &p); err != nil {
			return spec, err
		}
		loc, err := p.bind(ev.Token)
		if err != nil {
			return bad("%v", err)
		}
		back.Target, back.From = p.Target, loc.String()
	default:
		return bad("it is a %s, and only a swapped location can be swapped back", s.Kind)
	}
	switch {
	case !ev.There:
		return bad("the partition was absent before; drop it by hand if it has to go")
	case ev.Location == "" || back.From == "":
		return bad("its evidence does not say where the partition lay")
	case settable(ev.Location) != nil:
		return bad("%v; publish the old rows anew, from there", settable(ev.Location))
	}
	back.Target.Partition = ev.Partition
	return SwapLocation(back), nil
}
