package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/structured"
	"k8s.io/utils/ptr"
)

// world is the objects of one scenario. It is the allocator's DeviceClassLister too.
type world struct {
	nodes   []*corev1.Node
	slices  []*resourceapi.ResourceSlice
	classes map[string]*resourceapi.DeviceClass
	rules   []*resourceapi.DeviceTaintRule
	claims  []*resourceapi.ResourceClaim
	byName  map[string]*resourceapi.ResourceClaim
}

func readWorld(objects []json.RawMessage) (*world, error) {
	w := &world{
		classes: map[string]*resourceapi.DeviceClass{},
		byName:  map[string]*resourceapi.ResourceClaim{},
	}
	for _, raw := range objects {
		var kind metav1.TypeMeta
		if err := json.Unmarshal(raw, &kind); err != nil {
			return nil, err
		}
		var err error
		switch kind.Kind {
		case "Node":
			err = add(raw, func(node *corev1.Node) { w.nodes = append(w.nodes, node) })
		case "ResourceSlice":
			err = add(raw, func(slice *resourceapi.ResourceSlice) { w.slices = append(w.slices, slice) })
		case "DeviceClass":
			err = add(raw, func(class *resourceapi.DeviceClass) { w.classes[class.Name] = class })
		case "DeviceTaintRule":
			err = add(raw, func(rule *resourceapi.DeviceTaintRule) { w.rules = append(w.rules, rule) })
		case "ResourceClaim":
			err = add(raw, func(claim *resourceapi.ResourceClaim) {
				fillIn(claim)
				w.claims = append(w.claims, claim)
				w.byName[claim.Namespace+"/"+claim.Name] = claim
			})
		default:
			err = fmt.Errorf("unknown kind %q", kind.Kind)
		}
		if err != nil {
			return nil, err
		}
	}
	// The tracker of kube-scheduler applies rules in no fixed order. Nothing depends on it but the order of taints.
	slices.SortFunc(w.rules, func(a, b *resourceapi.DeviceTaintRule) int { return strings.Compare(a.Name, b.Name) })
	return w, nil
}

func add[T any](raw json.RawMessage, keep func(*T)) error {
	object := new(T)
	if err := json.Unmarshal(raw, object); err != nil {
		return err
	}
	keep(object)
	return nil
}

// fillIn gives a claim the defaults that the API server gives it.
func fillIn(claim *resourceapi.ResourceClaim) {
	if claim.Namespace == "" {
		claim.Namespace = "default"
	}
	for i := range claim.Spec.Devices.Requests {
		request := &claim.Spec.Devices.Requests[i]
		if exactly := request.Exactly; exactly != nil {
			fillInCount(&exactly.AllocationMode, &exactly.Count)
			fillInOperators(exactly.Tolerations)
		}
		for j := range request.FirstAvailable {
			choice := &request.FirstAvailable[j]
			fillInCount(&choice.AllocationMode, &choice.Count)
			fillInOperators(choice.Tolerations)
		}
	}
}

func fillInCount(mode *resourceapi.DeviceAllocationMode, count *int64) {
	if *mode == "" {
		*mode = resourceapi.DeviceAllocationModeExactCount
	}
	if *mode == resourceapi.DeviceAllocationModeExactCount && *count == 0 {
		*count = 1
	}
}

func fillInOperators(tolerations []resourceapi.DeviceToleration) {
	for i := range tolerations {
		if tolerations[i].Operator == "" {
			tolerations[i].Operator = resourceapi.DeviceTolerationOpEqual
		}
	}
}

// List implements structured.DeviceClassLister.
func (w *world) List() ([]*resourceapi.DeviceClass, error) {
	var all []*resourceapi.DeviceClass
	for _, class := range w.classes {
		all = append(all, class)
	}
	return all, nil
}

// Get implements structured.DeviceClassLister, with the error of a lister.
func (w *world) Get(name string) (*resourceapi.DeviceClass, error) {
	if class, ok := w.classes[name]; ok {
		return class, nil
	}
	return nil, apierrors.NewNotFound(resourceapi.Resource("deviceclass"), name)
}

// node is the node of that name, without labels if no object describes it.
func (w *world) node(name string) *corev1.Node {
	for _, node := range w.nodes {
		if node.Name == name {
			return node
		}
	}
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

func (w *world) pick(names []string) ([]*resourceapi.ResourceClaim, error) {
	var picked []*resourceapi.ResourceClaim
	for _, name := range names {
		claim, ok := w.byName[name]
		if !ok {
			return nil, fmt.Errorf("no claim %q among the objects", name)
		}
		picked = append(picked, claim)
	}
	return picked, nil
}

// taintedSlices are the slices with the taints of rules added, as kube-scheduler's tracker adds them.
func (w *world) taintedSlices() []*resourceapi.ResourceSlice {
	if len(w.rules) == 0 {
		return w.slices
	}
	tainted := make([]*resourceapi.ResourceSlice, 0, len(w.slices))
	for _, slice := range w.slices {
		own := slice
		for _, rule := range w.rules {
			selector := rule.Spec.DeviceSelector
			if selector == nil ||
				ptr.Deref(selector.Driver, slice.Spec.Driver) != slice.Spec.Driver ||
				ptr.Deref(selector.Pool, slice.Spec.Pool.Name) != slice.Spec.Pool.Name {
				continue
			}
			for i := range slice.Spec.Devices {
				if name := slice.Spec.Devices[i].Name; ptr.Deref(selector.Device, name) != name {
					continue
				}
				if own == slice {
					own = slice.DeepCopy()
				}
				device := &own.Spec.Devices[i]
				device.Taints = append(device.Taints, rule.Spec.Taint)
			}
		}
		tainted = append(tainted, own)
	}
	return tainted
}

// inUse is what the allocated claims hold. Admin access holds nothing.
func (w *world) inUse(enabled structured.Features) structured.AllocatedState {
	state := structured.AllocatedState{
		AllocatedDevices:         sets.New[structured.DeviceID](),
		AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
		AggregatedCapacity:       structured.NewConsumedCapacityCollection(),
	}
	for _, claim := range w.claims {
		if claim.Status.Allocation == nil {
			continue
		}
		for _, result := range claim.Status.Allocation.Devices.Results {
			if ptr.Deref(result.AdminAccess, false) {
				continue
			}
			id := structured.MakeDeviceID(result.Driver, result.Pool, result.Device)
			if !enabled.ConsumableCapacity || result.ShareID == nil {
				state.AllocatedDevices.Insert(id)
				continue
			}
			state.AllocatedSharedDeviceIDs.Insert(structured.MakeSharedDeviceID(id, result.ShareID))
			if result.ConsumedCapacity != nil {
				state.AggregatedCapacity.Insert(structured.NewDeviceConsumedCapacity(id, result.ConsumedCapacity))
			}
		}
	}
	return state
}
