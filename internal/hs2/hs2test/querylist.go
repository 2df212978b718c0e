package hs2test

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
)

// queryList serves what the web server of Hive serves of its statements.
func (s *Server) queryList() http.Handler {
	list := func(historical bool) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			s.mu.Lock()
			entries := []map[string]any{}
			if historical {
				for _, o := range s.historical {
					entries = append(entries, o.entry(true))
				}
			} else {
				for _, o := range s.operations {
					entries = append(entries, o.entry(false))
				}
			}
			s.mu.Unlock()
			slices.SortFunc(entries, func(a, b map[string]any) int { return int(a["beginTime"].(int64) - b["beginTime"].(int64)) })
			entries = slices.DeleteFunc(entries, func(e map[string]any) bool { return e["queryDisplay"].(map[string]any)["queryString"] == "" })
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(entries)
		}
	}
	mux := http.NewServeMux()
	mux.Handle("GET /api/v1/queries/active", list(false))
	mux.Handle("GET /api/v1/queries/historical", list(true))
	return mux
}

func (o *operation) entry(closed bool) map[string]any {
	step := o.step()
	display := map[string]any{"queryId": o.queryID, "queryString": o.sql, "errorMessage": nil}
	if step.Message != "" {
		display["errorMessage"] = step.Message
	}
	if strings.HasPrefix(step.Tasks, "[") {
		display["taskDisplays"] = json.RawMessage(step.Tasks)
	}
	e := map[string]any{
		"userName": o.user, "executionEngine": "tez", "beginTime": o.begin.UnixMilli(), "endTime": nil, "sessionId": o.session,
		"operationId": o.id.String(), "state": step.State.String(), "queryDisplay": display, "running": !closed,
	}
	if closed {
		e["endTime"] = o.begin.UnixMilli()
	}
	return e
}
