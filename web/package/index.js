/* Sightline, Apache-2.0, with ONNX Runtime 1.30.0, MIT (licences.txt). Built from sources 2ebc5e6c71d957b48cae58e3d9f5576165003833d45e7fd06360ce411a08eda2. */
//#region \0rolldown/runtime.js
var e = /* @__PURE__ */ ((e) => typeof require < "u" ? require : typeof Proxy < "u" ? new Proxy(e, { get: (e, t) => (typeof require < "u" ? require : e)[t] }) : e)(function(e) {
	if (typeof require < "u") return require.apply(this, arguments);
	throw Error("Calling `require` for \"" + e + "\" in an environment that doesn't expose the `require` function. See https://rolldown.rs/in-depth/bundling-cjs#require-external-modules for more details.");
}), t = {
	sure: .8,
	likely: .5,
	doubtful: 0
};
//#endregion
//#region src/confidence.ts
function n(e) {
	let n = Object.keys(t);
	return n.find((n) => e >= t[n]) ?? n[n.length - 1];
}
var r = class {
	file;
	functionWords;
	mean;
	matrix;
	constructor(e) {
		if (this.file = e, e.format !== "sightline-confidence-1") throw Error(`confidence.json has the unknown format ${e.format}`);
		this.functionWords = new Set(e.words.function_words), this.mean = o(e.photos.mean), this.matrix = o(e.photos.matrix);
	}
	oodScore(e) {
		let { directions: t, dimension: n, limit: r } = this.file.photos, i = 0;
		for (let r = 0; r < t; r++) {
			let t = 0;
			for (let i = 0; i < n; i++) t += (e[i] - this.mean[i]) * this.matrix[r * n + i];
			i += t * t;
		}
		return Math.sqrt(i / t) / r;
	}
	calibrate(e, t, n) {
		let { intercept: r, slope: o, offsets: s } = this.file.words, c = this.file.captions, l = e.map(({ text: e, probability: t }) => {
			let n = Object.hasOwn(s, e) ? s[e] : 0;
			return i(r + o * a(t) + n);
		}), u = l.filter((t, n) => !this.functionWords.has(e[n].text)), d = u.length ? u : l, f = d.length ? d.reduce((e, t) => e + t, 0) / d.length : 0, p = Math.log(Math.max(t, 1e-30)), m = i(c.intercept + c.words * a(f) + c.log_probability * p);
		return {
			words: l,
			caption: m,
			ood_score: n,
			unsure: n > 1 || m < c.unsure_below
		};
	}
};
function i(e) {
	return 1 / (1 + Math.exp(-Math.min(Math.max(e, -40), 40)));
}
function a(e) {
	let t = Math.min(Math.max(e, 1e-4), .9999);
	return Math.log(t / (1 - t));
}
function o(e) {
	let t = Uint8Array.from(atob(e), (e) => e.charCodeAt(0));
	return Float32Array.from({ length: t.length >> 1 }, (e, n) => {
		let r = t[2 * n] | t[2 * n + 1] << 8, i = r & 32768 ? -1 : 1, a = r >> 10 & 31, o = r & 1023;
		return a ? i * 2 ** (a - 15) * (1 + o / 1024) : i * o / 2 ** 24;
	});
}
//#endregion
//#region src/heatmap.ts
var s = .6, c = .3, l = [
	9,
	12,
	28
], u = [
	255,
	190,
	92
];
Array.from({ length: 256 }, (e, t) => {
	let n = t / 255, r = .7 * (1 - n) ** 1.25, i = .22 * n ** 1.5, a = i + r * (1 - i), o = i / Math.max(a, 1e-9);
	return {
		alpha: a,
		colour: l.map((e, t) => o * u[t] + (1 - o) * e)
	};
});
function d(e) {
	let t = e.map((e) => {
		let t = e.flat().reduce((e, t) => e + t, 0) / (e.length * e[0].length);
		return e.map((e) => e.map((e) => Math.max(0, e - t)));
	}), n = t.map((e) => {
		let [t, n] = [5 * e.length, 5 * e[0].length], r = 0;
		return f(e, n, t, [
			0,
			0,
			1,
			1
		], (e, t) => r = Math.max(r, t)), r;
	}), r = c * Math.max(...n);
	return t.map((e, t) => e.map((e) => e.map((e) => e / Math.max(n[t], r, 1e-12))));
}
function f(e, t, n, r, i) {
	let [a, o, s, c] = r, l = p(e[0].length, a, s, t), u = p(e.length, o, c, n);
	for (let r = 0, a = 0; r < n; r++) {
		let n = u[r], o = n && e[0].map((t, r) => n.reduce((t, n, i) => t + n * e[i][r], 0));
		for (let e = 0; e < t; e++, a++) {
			let t = 0, n = l[e];
			if (o && n) for (let e = 0; e < n.length; e++) t += n[e] * o[e];
			i(a, t);
		}
	}
}
function p(e, t, n, r) {
	return Array.from({ length: r }, (i, a) => {
		let o = ((a + .5) / r - t) / (n - t);
		if (o < 0 || o > 1) return null;
		let c = o * e - .5, l = Array.from({ length: e }, (e, t) => Math.exp(-.5 * ((c - t) / s) ** 2)), u = l.reduce((e, t) => e + t, 0);
		return l.map((e) => e / u);
	});
}
//#endregion
//#region node_modules/onnxruntime-web/dist/ort.wasm.min.mjs
var m = Object.defineProperty, h = Object.getOwnPropertyDescriptor, g = Object.getOwnPropertyNames, _ = Object.prototype.hasOwnProperty, v = ((t) => typeof e < "u" ? e : typeof Proxy < "u" ? new Proxy(t, { get: (t, n) => (typeof e < "u" ? e : t)[n] }) : t)(function(t) {
	if (typeof e < "u") return e.apply(this, arguments);
	throw Error("Dynamic require of \"" + t + "\" is not supported");
}), y = (e, t, n) => () => {
	if (n) throw n[0];
	try {
		return e && (t = e(e = 0)), t;
	} catch (e) {
		throw n = [e], e;
	}
}, b = (e, t) => {
	for (var n in t) m(e, n, {
		get: t[n],
		enumerable: !0
	});
}, ee = (e, t, n, r) => {
	if (t && typeof t == "object" || typeof t == "function") for (let i of g(t)) !_.call(e, i) && i !== n && m(e, i, {
		get: () => t[i],
		enumerable: !(r = h(t, i)) || r.enumerable
	});
	return e;
}, x = (e) => ee(m({}, "__esModule", { value: !0 }), e), S, C, w, te, ne, re = y(() => {
	S = /* @__PURE__ */ new Map(), C = [], w = (e, t, n) => {
		if (t && typeof t.init == "function" && typeof t.createInferenceSessionHandler == "function") {
			let r = S.get(e);
			if (r === void 0) S.set(e, {
				backend: t,
				priority: n
			});
			else {
				if (r.priority > n) return;
				if (r.priority === n && r.backend !== t) throw Error(`cannot register backend "${e}" using priority ${n}`);
			}
			if (n >= 0) {
				let t = C.indexOf(e);
				t !== -1 && C.splice(t, 1);
				for (let t = 0; t < C.length; t++) if (S.get(C[t]).priority <= n) {
					C.splice(t, 0, e);
					return;
				}
				C.push(e);
			}
		} else throw TypeError("not a valid backend");
	}, te = async (e) => {
		let t = S.get(e);
		if (!t) return "backend not found.";
		if (t.initialized) return t.backend;
		if (t.aborted) return t.error;
		{
			let n = !!t.initPromise;
			try {
				return n || (t.initPromise = t.backend.init(e)), await t.initPromise, t.initialized = !0, t.backend;
			} catch (e) {
				return n || (t.error = `${e}`, t.aborted = !0), t.error;
			} finally {
				delete t.initPromise;
			}
		}
	}, ne = async (e) => {
		let t = e.executionProviders || [], n = t.map((e) => typeof e == "string" ? e : e.name), r = n.length === 0 ? C : n, i, a = [], o = /* @__PURE__ */ new Set();
		for (let e of r) {
			let t = await te(e);
			typeof t == "string" ? a.push({
				name: e,
				err: t
			}) : (i ||= t, i === t && o.add(e));
		}
		if (!i) throw Error(`no available backend found. ERR: ${a.map((e) => `[${e.name}] ${e.err}`).join(", ")}`);
		for (let { name: e, err: t } of a) n.includes(e) && console.warn(`removing requested execution provider "${e}" from session options because it is not available: ${t}`);
		let s = t.filter((e) => o.has(typeof e == "string" ? e : e.name));
		return [i, new Proxy(e, { get: (e, t) => t === "executionProviders" ? s : Reflect.get(e, t) })];
	};
}), ie = y(() => {
	re();
}), ae, oe = y(() => {
	ae = "1.30.0";
}), se, T, ce = y(() => {
	oe(), se = "warning", T = {
		wasm: {},
		webgl: {},
		webgpu: {},
		versions: { common: ae },
		set logLevel(e) {
			if (e !== void 0) {
				if (typeof e != "string" || [
					"verbose",
					"info",
					"warning",
					"error",
					"fatal"
				].indexOf(e) === -1) throw Error(`Unsupported logging level: ${e}`);
				se = e;
			}
		},
		get logLevel() {
			return se;
		}
	}, Object.defineProperty(T, "logLevel", { enumerable: !0 });
}), E, le = y(() => {
	ce(), E = T;
}), ue, de, fe = y(() => {
	ue = (e, t) => {
		let n = typeof document < "u" ? document.createElement("canvas") : new OffscreenCanvas(1, 1);
		n.width = e.dims[3], n.height = e.dims[2];
		let r = n.getContext("2d");
		if (r != null) {
			let i, a;
			t?.tensorLayout !== void 0 && t.tensorLayout === "NHWC" ? (i = e.dims[2], a = e.dims[3]) : (i = e.dims[3], a = e.dims[2]);
			let o = t?.format === void 0 ? "RGB" : t.format, s = t?.norm, c, l;
			s === void 0 || s.mean === void 0 ? c = [
				255,
				255,
				255,
				255
			] : typeof s.mean == "number" ? c = [
				s.mean,
				s.mean,
				s.mean,
				s.mean
			] : (c = [
				s.mean[0],
				s.mean[1],
				s.mean[2],
				0
			], s.mean[3] !== void 0 && (c[3] = s.mean[3])), s === void 0 || s.bias === void 0 ? l = [
				0,
				0,
				0,
				0
			] : typeof s.bias == "number" ? l = [
				s.bias,
				s.bias,
				s.bias,
				s.bias
			] : (l = [
				s.bias[0],
				s.bias[1],
				s.bias[2],
				0
			], s.bias[3] !== void 0 && (l[3] = s.bias[3]));
			let u = a * i, d = 0, f = u, p = u * 2, m = -1;
			o === "RGBA" ? (d = 0, f = u, p = u * 2, m = u * 3) : o === "RGB" ? (d = 0, f = u, p = u * 2) : o === "RBG" && (d = 0, p = u, f = u * 2);
			for (let t = 0; t < a; t++) for (let n = 0; n < i; n++) {
				let i = (e.data[d++] - l[0]) * c[0], a = (e.data[f++] - l[1]) * c[1], o = (e.data[p++] - l[2]) * c[2], s = m === -1 ? 255 : (e.data[m++] - l[3]) * c[3];
				r.fillStyle = "rgba(" + i + "," + a + "," + o + "," + s + ")", r.fillRect(n, t, 1, 1);
			}
			if ("toDataURL" in n) return n.toDataURL();
			throw Error("toDataURL is not supported");
		}
		throw Error("Can not access image data");
	}, de = (e, t) => {
		let n = typeof document < "u" ? document.createElement("canvas").getContext("2d") : new OffscreenCanvas(1, 1).getContext("2d"), r;
		if (n != null) {
			let i, a, o;
			t?.tensorLayout !== void 0 && t.tensorLayout === "NHWC" ? (i = e.dims[2], a = e.dims[1], o = e.dims[3]) : (i = e.dims[3], a = e.dims[2], o = e.dims[1]);
			let s = t !== void 0 && t.format !== void 0 ? t.format : "RGB", c = t?.norm, l, u;
			c === void 0 || c.mean === void 0 ? l = [
				255,
				255,
				255,
				255
			] : typeof c.mean == "number" ? l = [
				c.mean,
				c.mean,
				c.mean,
				c.mean
			] : (l = [
				c.mean[0],
				c.mean[1],
				c.mean[2],
				255
			], c.mean[3] !== void 0 && (l[3] = c.mean[3])), c === void 0 || c.bias === void 0 ? u = [
				0,
				0,
				0,
				0
			] : typeof c.bias == "number" ? u = [
				c.bias,
				c.bias,
				c.bias,
				c.bias
			] : (u = [
				c.bias[0],
				c.bias[1],
				c.bias[2],
				0
			], c.bias[3] !== void 0 && (u[3] = c.bias[3]));
			let d = a * i;
			if (t !== void 0 && (t.format !== void 0 && o === 4 && t.format !== "RGBA" || o === 3 && t.format !== "RGB" && t.format !== "BGR")) throw Error("Tensor format doesn't match input tensor dims");
			let f = 0, p = 1, m = 2, h = 3, g = 0, _ = d, v = d * 2, y = -1;
			s === "RGBA" ? (g = 0, _ = d, v = d * 2, y = d * 3) : s === "RGB" ? (g = 0, _ = d, v = d * 2) : s === "RBG" && (g = 0, v = d, _ = d * 2), r = n.createImageData(i, a);
			for (let t = 0; t < a * i; f += 4, p += 4, m += 4, h += 4, t++) r.data[f] = (e.data[g++] - u[0]) * l[0], r.data[p] = (e.data[_++] - u[1]) * l[1], r.data[m] = (e.data[v++] - u[2]) * l[2], r.data[h] = y === -1 ? 255 : (e.data[y++] - u[3]) * l[3];
		} else throw Error("Can not access image data");
		return r;
	};
}), pe, me, he, ge, _e, ve, ye = y(() => {
	Ee(), pe = (e, t) => {
		if (e === void 0) throw Error("Image buffer must be defined");
		if (t.height === void 0 || t.width === void 0) throw Error("Image height and width must be defined");
		if (t.tensorLayout === "NHWC") throw Error("NHWC Tensor layout is not supported yet");
		let { height: n, width: r } = t, i = t.norm ?? {
			mean: 255,
			bias: 0
		}, a, o;
		a = typeof i.mean == "number" ? [
			i.mean,
			i.mean,
			i.mean,
			i.mean
		] : [
			i.mean[0],
			i.mean[1],
			i.mean[2],
			i.mean[3] ?? 255
		], o = typeof i.bias == "number" ? [
			i.bias,
			i.bias,
			i.bias,
			i.bias
		] : [
			i.bias[0],
			i.bias[1],
			i.bias[2],
			i.bias[3] ?? 0
		];
		let s = t.format === void 0 ? "RGBA" : t.format, c = t.tensorFormat !== void 0 && t.tensorFormat !== void 0 ? t.tensorFormat : "RGB", l = n * r, u = c === "RGBA" ? new Float32Array(l * 4) : new Float32Array(l * 3), d = 4, f = 0, p = 1, m = 2, h = 3, g = 0, _ = l, v = l * 2, y = -1;
		s === "RGB" && (d = 3, f = 0, p = 1, m = 2, h = -1), c === "RGBA" ? y = l * 3 : c === "RBG" ? (g = 0, v = l, _ = l * 2) : c === "BGR" && (v = 0, _ = l, g = l * 2);
		for (let t = 0; t < l; t++, f += d, m += d, p += d, h += d) u[g++] = (e[f] + o[0]) / a[0], u[_++] = (e[p] + o[1]) / a[1], u[v++] = (e[m] + o[2]) / a[2], y !== -1 && h !== -1 && (u[y++] = (e[h] + o[3]) / a[3]);
		return c === "RGBA" ? new k("float32", u, [
			1,
			4,
			n,
			r
		]) : new k("float32", u, [
			1,
			3,
			n,
			r
		]);
	}, me = async (e, t) => {
		let n = typeof HTMLImageElement < "u" && e instanceof HTMLImageElement, r = typeof ImageData < "u" && e instanceof ImageData, i = typeof ImageBitmap < "u" && e instanceof ImageBitmap, a = typeof e == "string", o, s = t ?? {}, c = () => {
			if (typeof document < "u") return document.createElement("canvas");
			if (typeof OffscreenCanvas < "u") return new OffscreenCanvas(1, 1);
			throw Error("Canvas is not supported");
		}, l = (e) => typeof HTMLCanvasElement < "u" && e instanceof HTMLCanvasElement || e instanceof OffscreenCanvas ? e.getContext("2d") : null;
		if (n) {
			let n = c();
			n.width = e.width, n.height = e.height;
			let r = l(n);
			if (r != null) {
				let n = e.height, i = e.width;
				if (t !== void 0 && t.resizedHeight !== void 0 && t.resizedWidth !== void 0 && (n = t.resizedHeight, i = t.resizedWidth), t !== void 0) {
					if (s = t, t.tensorFormat !== void 0) throw Error("Image input config format must be RGBA for HTMLImageElement");
					s.tensorFormat = "RGBA", s.height = n, s.width = i;
				} else s.tensorFormat = "RGBA", s.height = n, s.width = i;
				r.drawImage(e, 0, 0), o = r.getImageData(0, 0, i, n).data;
			} else throw Error("Can not access image data");
		} else if (r) {
			let n, r;
			if (t !== void 0 && t.resizedWidth !== void 0 && t.resizedHeight !== void 0 ? (n = t.resizedHeight, r = t.resizedWidth) : (n = e.height, r = e.width), t !== void 0 && (s = t), s.format = "RGBA", s.height = n, s.width = r, t !== void 0) {
				let t = c();
				t.width = r, t.height = n;
				let i = l(t);
				if (i != null) i.putImageData(e, 0, 0), o = i.getImageData(0, 0, r, n).data;
				else throw Error("Can not access image data");
			} else o = e.data;
		} else if (i) {
			if (t === void 0) throw Error("Please provide image config with format for Imagebitmap");
			let n = c();
			n.width = e.width, n.height = e.height;
			let r = l(n);
			if (r != null) {
				let t = e.height, n = e.width;
				return r.drawImage(e, 0, 0, n, t), o = r.getImageData(0, 0, n, t).data, s.height = t, s.width = n, pe(o, s);
			}
			throw Error("Can not access image data");
		} else {
			if (a) return new Promise((t, n) => {
				let r = c(), i = l(r);
				if (!e || !i) return n();
				let a = new Image();
				a.crossOrigin = "Anonymous", a.src = e, a.onload = () => {
					r.width = a.width, r.height = a.height, i.drawImage(a, 0, 0, r.width, r.height);
					let e = i.getImageData(0, 0, r.width, r.height);
					s.height = r.height, s.width = r.width, t(pe(e.data, s));
				};
			});
			throw Error("Input data provided is not supported - aborted tensor creation");
		}
		if (o !== void 0) return pe(o, s);
		throw Error("Input data provided is not supported - aborted tensor creation");
	}, he = (e, t) => {
		let { width: n, height: r, download: i, dispose: a } = t;
		return new k({
			location: "texture",
			type: "float32",
			texture: e,
			dims: [
				1,
				r,
				n,
				4
			],
			download: i,
			dispose: a
		});
	}, ge = (e, t) => {
		let { dataType: n, dims: r, download: i, dispose: a } = t;
		return new k({
			location: "gpu-buffer",
			type: n ?? "float32",
			gpuBuffer: e,
			dims: r,
			download: i,
			dispose: a
		});
	}, _e = (e, t) => {
		let { dataType: n, dims: r, download: i, dispose: a } = t;
		return new k({
			location: "ml-tensor",
			type: n ?? "float32",
			mlTensor: e,
			dims: r,
			download: i,
			dispose: a
		});
	}, ve = (e, t, n) => new k({
		location: "cpu-pinned",
		type: e,
		data: t,
		dims: n ?? [t.length]
	});
}), D, O, be, xe, Se = y(() => {
	D = /* @__PURE__ */ new Map([
		["float32", Float32Array],
		["uint8", Uint8Array],
		["int8", Int8Array],
		["uint16", Uint16Array],
		["int16", Int16Array],
		["int32", Int32Array],
		["bool", Uint8Array],
		["float64", Float64Array],
		["uint32", Uint32Array],
		["int4", Uint8Array],
		["uint4", Uint8Array]
	]), O = /* @__PURE__ */ new Map([
		[Float32Array, "float32"],
		[Uint8Array, "uint8"],
		[Int8Array, "int8"],
		[Uint16Array, "uint16"],
		[Int16Array, "int16"],
		[Int32Array, "int32"],
		[Float64Array, "float64"],
		[Uint32Array, "uint32"]
	]), be = !1, xe = () => {
		if (!be) {
			be = !0;
			let e = typeof BigInt64Array < "u" && BigInt64Array.from, t = typeof BigUint64Array < "u" && BigUint64Array.from, n = globalThis.Float16Array, r = typeof n < "u" && n.from;
			e && (D.set("int64", BigInt64Array), O.set(BigInt64Array, "int64")), t && (D.set("uint64", BigUint64Array), O.set(BigUint64Array, "uint64")), r ? (D.set("float16", n), O.set(n, "float16")) : D.set("float16", Uint16Array);
		}
	};
}), Ce, we, Te = y(() => {
	Ee(), Ce = (e) => {
		let t = 1;
		for (let n = 0; n < e.length; n++) {
			let r = e[n];
			if (typeof r != "number" || !Number.isSafeInteger(r)) throw TypeError(`dims[${n}] must be an integer, got: ${r}`);
			if (r < 0) throw RangeError(`dims[${n}] must be a non-negative integer, got: ${r}`);
			t *= r;
		}
		return t;
	}, we = (e, t) => {
		switch (e.location) {
			case "cpu": return new k(e.type, e.data, t);
			case "cpu-pinned": return new k({
				location: "cpu-pinned",
				data: e.data,
				type: e.type,
				dims: t
			});
			case "texture": return new k({
				location: "texture",
				texture: e.texture,
				type: e.type,
				dims: t
			});
			case "gpu-buffer": return new k({
				location: "gpu-buffer",
				gpuBuffer: e.gpuBuffer,
				type: e.type,
				dims: t
			});
			case "ml-tensor": return new k({
				location: "ml-tensor",
				mlTensor: e.mlTensor,
				type: e.type,
				dims: t
			});
			default: throw Error(`tensorReshape: tensor location ${e.location} is not supported`);
		}
	};
}), k, Ee = y(() => {
	fe(), ye(), Se(), Te(), k = class {
		constructor(e, t, n) {
			xe();
			let r, i;
			if (typeof e == "object" && "location" in e) switch (this.dataLocation = e.location, r = e.type, i = e.dims, e.location) {
				case "cpu-pinned": {
					let t = D.get(r);
					if (!t) throw TypeError(`unsupported type "${r}" to create tensor from pinned buffer`);
					if (!(e.data instanceof t)) throw TypeError(`buffer should be of type ${t.name}`);
					this.cpuData = e.data;
					break;
				}
				case "texture":
					if (r !== "float32") throw TypeError(`unsupported type "${r}" to create tensor from texture`);
					this.gpuTextureData = e.texture, this.downloader = e.download, this.disposer = e.dispose;
					break;
				case "gpu-buffer":
					if (r !== "float32" && r !== "float16" && r !== "int32" && r !== "int64" && r !== "uint32" && r !== "uint8" && r !== "bool" && r !== "uint4" && r !== "int4") throw TypeError(`unsupported type "${r}" to create tensor from gpu buffer`);
					this.gpuBufferData = e.gpuBuffer, this.downloader = e.download, this.disposer = e.dispose;
					break;
				case "ml-tensor":
					if (r !== "float32" && r !== "float16" && r !== "int32" && r !== "int64" && r !== "uint32" && r !== "uint64" && r !== "int8" && r !== "uint8" && r !== "bool" && r !== "uint4" && r !== "int4") throw TypeError(`unsupported type "${r}" to create tensor from MLTensor`);
					this.mlTensorData = e.mlTensor, this.downloader = e.download, this.disposer = e.dispose;
					break;
				default: throw Error(`Tensor constructor: unsupported location '${this.dataLocation}'`);
			}
			else {
				let a, o;
				if (typeof e == "string") {
					if (r = e, o = n, e === "string") {
						if (!Array.isArray(t)) throw TypeError("A string tensor's data must be a string array.");
						a = t;
					} else {
						let n = D.get(e);
						if (n === void 0) throw TypeError(`Unsupported tensor type: ${e}.`);
						if (Array.isArray(t)) {
							if (e === "float16" && n === Uint16Array || e === "uint4" || e === "int4") throw TypeError(`Creating a ${e} tensor from number array is not supported. Please use ${n.name} as data.`);
							a = e === "uint64" || e === "int64" ? n.from(t, BigInt) : n.from(t);
						} else if (t instanceof n) a = t;
						else if (t instanceof Uint8ClampedArray) {
							if (e === "uint8") a = Uint8Array.from(t);
							else throw TypeError("A Uint8ClampedArray tensor's data must be type of uint8");
						} else if (e === "float16" && t instanceof Uint16Array && n !== Uint16Array) a = new globalThis.Float16Array(t.buffer, t.byteOffset, t.length);
						else throw TypeError(`A ${r} tensor's data must be type of ${n}`);
					}
				} else if (o = t, Array.isArray(e)) {
					if (e.length === 0) throw TypeError("Tensor type cannot be inferred from an empty array.");
					let t = typeof e[0];
					if (t === "string") r = "string", a = e;
					else if (t === "boolean") r = "bool", a = Uint8Array.from(e);
					else throw TypeError(`Invalid element type of data array: ${t}.`);
				} else if (e instanceof Uint8ClampedArray) r = "uint8", a = Uint8Array.from(e);
				else {
					let t = O.get(e.constructor);
					if (t === void 0) throw TypeError(`Unsupported type for tensor data: ${e.constructor}.`);
					r = t, a = e;
				}
				if (o === void 0) o = [a.length];
				else if (!Array.isArray(o)) throw TypeError("A tensor's dims must be a number array");
				i = o, this.cpuData = a, this.dataLocation = "cpu";
			}
			let a = Ce(i);
			if (this.cpuData && a !== this.cpuData.length && (r !== "uint4" && r !== "int4" || Math.ceil(a / 2) !== this.cpuData.length)) throw Error(`Tensor's size(${a}) does not match data length(${this.cpuData.length}).`);
			this.type = r, this.dims = i, this.size = a;
		}
		static async fromImage(e, t) {
			return me(e, t);
		}
		static fromTexture(e, t) {
			return he(e, t);
		}
		static fromGpuBuffer(e, t) {
			return ge(e, t);
		}
		static fromMLTensor(e, t) {
			return _e(e, t);
		}
		static fromPinnedBuffer(e, t, n) {
			return ve(e, t, n);
		}
		toDataURL(e) {
			return ue(this, e);
		}
		toImageData(e) {
			return de(this, e);
		}
		get data() {
			if (this.ensureValid(), !this.cpuData) throw Error("The data is not on CPU. Use `getData()` to download GPU data to CPU, or use `texture` or `gpuBuffer` property to access the GPU data directly.");
			return this.cpuData;
		}
		get location() {
			return this.dataLocation;
		}
		get texture() {
			if (this.ensureValid(), !this.gpuTextureData) throw Error("The data is not stored as a WebGL texture.");
			return this.gpuTextureData;
		}
		get gpuBuffer() {
			if (this.ensureValid(), !this.gpuBufferData) throw Error("The data is not stored as a WebGPU buffer.");
			return this.gpuBufferData;
		}
		get mlTensor() {
			if (this.ensureValid(), !this.mlTensorData) throw Error("The data is not stored as a WebNN MLTensor.");
			return this.mlTensorData;
		}
		async getData(e) {
			switch (this.ensureValid(), this.dataLocation) {
				case "cpu":
				case "cpu-pinned": return this.data;
				case "texture":
				case "gpu-buffer":
				case "ml-tensor":
					if (!this.downloader) throw Error("The current tensor is not created with a specified data downloader.");
					if (this.isDownloading) throw Error("The current tensor is being downloaded.");
					try {
						this.isDownloading = !0;
						let t = await this.downloader();
						return this.downloader = void 0, this.dataLocation = "cpu", this.cpuData = t, e && this.disposer && (this.disposer(), this.disposer = void 0), t;
					} finally {
						this.isDownloading = !1;
					}
				default: throw Error(`cannot get data from location: ${this.dataLocation}`);
			}
		}
		dispose() {
			if (this.isDownloading) throw Error("The current tensor is being downloaded.");
			this.disposer &&= (this.disposer(), void 0), this.cpuData = void 0, this.gpuTextureData = void 0, this.gpuBufferData = void 0, this.mlTensorData = void 0, this.downloader = void 0, this.isDownloading = void 0, this.dataLocation = "none";
		}
		ensureValid() {
			if (this.dataLocation === "none") throw Error("The tensor is disposed.");
		}
		reshape(e) {
			if (this.ensureValid(), this.downloader || this.disposer) throw Error("Cannot reshape a tensor that owns GPU resource.");
			return we(this, e);
		}
	};
}), A, De = y(() => {
	Ee(), A = k;
}), Oe, ke, j, M, N, P, Ae = y(() => {
	ce(), Oe = (e, t) => {
		(typeof T.trace > "u" ? !T.wasm.trace : !T.trace) || console.timeStamp(`${e}::ORT::${t}`);
	}, ke = (e, t) => {
		let n = (/* @__PURE__ */ Error()).stack?.split(/\r\n|\r|\n/g) || [], r = !1;
		for (let i = 0; i < n.length; i++) {
			if (r && !n[i].includes("TRACE_FUNC")) {
				let r = `FUNC_${e}::${n[i].trim().split(" ")[1]}`;
				t && (r += `::${t}`), Oe("CPU", r);
				return;
			}
			n[i].includes("TRACE_FUNC") && (r = !0);
		}
	}, j = (e) => {
		(typeof T.trace > "u" ? !T.wasm.trace : !T.trace) || ke("BEGIN", e);
	}, M = (e) => {
		(typeof T.trace > "u" ? !T.wasm.trace : !T.trace) || ke("END", e);
	}, N = (e) => {
		(typeof T.trace > "u" ? !T.wasm.trace : !T.trace) || console.time(`ORT::${e}`);
	}, P = (e) => {
		(typeof T.trace > "u" ? !T.wasm.trace : !T.trace) || console.timeEnd(`ORT::${e}`);
	};
}), je, Me = y(() => {
	re(), De(), Ae(), je = class e {
		constructor(e) {
			this.handler = e;
		}
		async run(e, t, n) {
			j(), N("InferenceSession.run");
			let r = {}, i = {};
			if (typeof e != "object" || !e || e instanceof A || Array.isArray(e)) throw TypeError("'feeds' must be an object that use input names as keys and OnnxValue as corresponding values.");
			let a = !0;
			if (typeof t == "object") {
				if (t === null) throw TypeError("Unexpected argument[1]: cannot be null.");
				if (t instanceof A) throw TypeError("'fetches' cannot be a Tensor");
				if (Array.isArray(t)) {
					if (t.length === 0) throw TypeError("'fetches' cannot be an empty array.");
					a = !1;
					for (let e of t) {
						if (typeof e != "string") throw TypeError("'fetches' must be a string array or an object.");
						if (this.outputNames.indexOf(e) === -1) throw RangeError(`'fetches' contains invalid output name: ${e}.`);
						r[e] = null;
					}
					if (typeof n == "object" && n) i = n;
					else if (typeof n < "u") throw TypeError("'options' must be an object.");
				} else {
					let e = !1, o = Object.getOwnPropertyNames(t);
					for (let n of this.outputNames) if (o.indexOf(n) !== -1) {
						let i = t[n];
						(i === null || i instanceof A) && (e = !0, a = !1, r[n] = i);
					}
					if (e) {
						if (typeof n == "object" && n) i = n;
						else if (typeof n < "u") throw TypeError("'options' must be an object.");
					} else i = t;
				}
			} else if (typeof t < "u") throw TypeError("Unexpected argument[1]: must be 'fetches' or 'options'.");
			for (let t of this.inputNames) if (typeof e[t] > "u") throw Error(`input '${t}' is missing in 'feeds'.`);
			if (a) for (let e of this.outputNames) r[e] = null;
			let o = await this.handler.run(e, r, i), s = {};
			for (let e in o) if (Object.hasOwnProperty.call(o, e)) {
				let t = o[e];
				s[e] = t instanceof A ? t : new A(t.type, t.data, t.dims);
			}
			return P("InferenceSession.run"), M(), s;
		}
		async release() {
			return this.handler.dispose();
		}
		static async create(t, n, r, i) {
			j(), N("InferenceSession.create");
			let a, o = {};
			if (typeof t == "string") {
				if (a = t, typeof n == "object" && n) o = n;
				else if (typeof n < "u") throw TypeError("'options' must be an object.");
			} else if (t instanceof Uint8Array) {
				if (a = t, typeof n == "object" && n) o = n;
				else if (typeof n < "u") throw TypeError("'options' must be an object.");
			} else if (t instanceof ArrayBuffer || typeof SharedArrayBuffer < "u" && t instanceof SharedArrayBuffer) {
				let e = t, s = 0, c = t.byteLength;
				if (typeof n == "object" && n) o = n;
				else if (typeof n == "number") {
					if (s = n, !Number.isSafeInteger(s)) throw RangeError("'byteOffset' must be an integer.");
					if (s < 0 || s >= e.byteLength) throw RangeError(`'byteOffset' is out of range [0, ${e.byteLength}).`);
					if (c = t.byteLength - s, typeof r == "number") {
						if (c = r, !Number.isSafeInteger(c)) throw RangeError("'byteLength' must be an integer.");
						if (c <= 0 || s + c > e.byteLength) throw RangeError(`'byteLength' is out of range (0, ${e.byteLength - s}].`);
						if (typeof i == "object" && i) o = i;
						else if (typeof i < "u") throw TypeError("'options' must be an object.");
					} else if (typeof r < "u") throw TypeError("'byteLength' must be a number.");
				} else if (typeof n < "u") throw TypeError("'options' must be an object.");
				a = new Uint8Array(e, s, c);
			} else throw TypeError("Unexpected argument[0]: must be 'path' or 'buffer'.");
			let [s, c] = await ne(o), l = await s.createInferenceSessionHandler(a, c);
			return P("InferenceSession.create"), M(), new e(l);
		}
		startProfiling() {
			this.handler.startProfiling();
		}
		endProfiling() {
			this.handler.endProfiling();
		}
		get inputNames() {
			return this.handler.inputNames;
		}
		get outputNames() {
			return this.handler.outputNames;
		}
		get inputMetadata() {
			return this.handler.inputMetadata;
		}
		get outputMetadata() {
			return this.handler.outputMetadata;
		}
	};
}), Ne, Pe = y(() => {
	Me(), Ne = je;
}), Fe = y(() => {}), Ie = y(() => {}), Le = y(() => {}), Re = y(() => {});
b({}, {
	InferenceSession: () => Ne,
	TRACE: () => Oe,
	TRACE_EVENT_BEGIN: () => N,
	TRACE_EVENT_END: () => P,
	TRACE_FUNC_BEGIN: () => j,
	TRACE_FUNC_END: () => M,
	Tensor: () => A,
	env: () => E,
	registerBackend: () => w
});
var F = y(() => {
	ie(), le(), Pe(), De(), Fe(), Ie(), Ae(), Le(), Re();
}), ze = y(() => {}), Be = {};
b(Be, { default: () => Ue });
var Ve, He, Ue, We = y(() => {
	Ut(), z(), it(), Ve = "ort-wasm-proxy-worker", He = globalThis.self?.name === Ve, He && (self.onmessage = (e) => {
		let { type: t, in: n } = e.data;
		try {
			switch (t) {
				case "init-wasm":
					dt(n.wasm).then(() => {
						Mt(n).then(() => {
							postMessage({ type: t });
						}, (e) => {
							postMessage({
								type: t,
								err: e
							});
						});
					}, (e) => {
						postMessage({
							type: t,
							err: e
						});
					});
					break;
				case "init-ep": {
					let { epName: e, env: r } = n;
					Nt(r, e).then(() => {
						postMessage({ type: t });
					}, (e) => {
						postMessage({
							type: t,
							err: e
						});
					});
					break;
				}
				case "copy-from": {
					let { buffer: e } = n, r = It(e);
					postMessage({
						type: t,
						out: r
					});
					break;
				}
				case "create": {
					let { model: e, options: r } = n;
					Lt(e, r).then((e) => {
						postMessage({
							type: t,
							out: e
						});
					}, (e) => {
						postMessage({
							type: t,
							err: e
						});
					});
					break;
				}
				case "release":
					Rt(n), postMessage({ type: t });
					break;
				case "run": {
					let { sessionId: e, inputIndices: r, inputs: i, outputIndices: a, options: o } = n;
					Bt(e, r, i, a, Array(a.length).fill(null), o).then((e) => {
						e.some((e) => e[3] !== "cpu") ? postMessage({
							type: t,
							err: "Proxy does not support non-cpu tensor location."
						}) : postMessage({
							type: t,
							out: e
						}, Ht([...i, ...e]));
					}, (e) => {
						postMessage({
							type: t,
							err: e
						});
					});
					break;
				}
				case "end-profiling": Vt(n), postMessage({ type: t });
			}
		} catch (e) {
			postMessage({
				type: t,
				err: e
			});
		}
	}), Ue = He ? null : (e) => new Worker(e ?? I, {
		type: "module",
		name: Ve
	});
}), Ge, Ke, qe, I, Je, Ye, Xe, Ze, Qe, $e, et, tt, nt, rt, it = y(() => {
	ze(), Ge = typeof location > "u" ? void 0 : location.origin, Ke = import.meta.url > "file:" && import.meta.url < "file;", qe = () => Ke ? new URL(new URL("ort.wasm.min.mjs", import.meta.url).href, Ge).href : import.meta.url, I = qe(), Je = () => {
		if (I && !I.startsWith("blob:")) return I.substring(0, I.lastIndexOf("/") + 1);
	}, Ye = (e, t) => {
		try {
			let n = t ?? I;
			return (n ? new URL(e, n) : new URL(e)).origin === Ge;
		} catch {
			return !1;
		}
	}, Xe = (e, t) => {
		let n = t ?? I;
		try {
			return (n ? new URL(e, n) : new URL(e)).href;
		} catch {
			return;
		}
	}, Ze = (e, t) => `${t ?? "./"}${e}`, Qe = async (e) => {
		let t = await (await fetch(e, { credentials: "same-origin" })).blob();
		return URL.createObjectURL(t);
	}, $e = async (e) => (await import(
		/*webpackIgnore:true*/
		/*@vite-ignore*/
		e
)).default, et = (We(), x(Be)).default, tt = async () => {
		if (!I) throw Error("Failed to load proxy worker: cannot determine the script source URL.");
		if (Ye(I)) return [void 0, et()];
		let e = await Qe(I);
		return [e, et(e)];
	}, nt = void 0, rt = async (e, t, n, r) => {
		let i = nt && !(e || t);
		if (i) {
			if (I) i = Ye(I) || r && !n;
			else if (r && !n) i = !0;
			else throw Error("cannot determine the script source URL.");
		}
		if (i) return [void 0, nt];
		{
			let r = "ort-wasm-simd-threaded.mjs", i = e ?? Xe(r, t), a = n && i && !Ye(i, t), o = a ? await Qe(i) : i ?? Ze(r, t);
			return [a ? o : void 0, await $e(o)];
		}
	};
}), at, ot, L, st, ct, lt, ut, dt, R, z = y(() => {
	it(), ot = !1, L = !1, st = !1, ct = () => {
		if (typeof SharedArrayBuffer > "u") return !1;
		try {
			return typeof MessageChannel < "u" && new MessageChannel().port1.postMessage(new SharedArrayBuffer(1)), WebAssembly.validate(new Uint8Array([
				0,
				97,
				115,
				109,
				1,
				0,
				0,
				0,
				1,
				4,
				1,
				96,
				0,
				0,
				3,
				2,
				1,
				0,
				5,
				4,
				1,
				3,
				1,
				1,
				10,
				11,
				1,
				9,
				0,
				65,
				0,
				254,
				16,
				2,
				0,
				26,
				11
			]));
		} catch {
			return !1;
		}
	}, lt = () => {
		try {
			return WebAssembly.validate(new Uint8Array([
				0,
				97,
				115,
				109,
				1,
				0,
				0,
				0,
				1,
				4,
				1,
				96,
				0,
				0,
				3,
				2,
				1,
				0,
				10,
				30,
				1,
				28,
				0,
				65,
				0,
				253,
				15,
				253,
				12,
				0,
				0,
				0,
				0,
				0,
				0,
				0,
				0,
				0,
				0,
				0,
				0,
				0,
				0,
				0,
				0,
				253,
				186,
				1,
				26,
				11
			]));
		} catch {
			return !1;
		}
	}, ut = () => {
		try {
			return WebAssembly.validate(new Uint8Array([
				0,
				97,
				115,
				109,
				1,
				0,
				0,
				0,
				1,
				5,
				1,
				96,
				0,
				1,
				123,
				3,
				2,
				1,
				0,
				10,
				19,
				1,
				17,
				0,
				65,
				1,
				253,
				15,
				65,
				2,
				253,
				15,
				65,
				3,
				253,
				15,
				253,
				147,
				2,
				11
			]));
		} catch {
			return !1;
		}
	}, dt = async (e) => {
		if (ot) return Promise.resolve();
		if (L) throw Error("multiple calls to 'initializeWebAssembly()' detected.");
		if (st) throw Error("previous call to 'initializeWebAssembly()' failed.");
		L = !0;
		let t = e.initTimeout, n = e.numThreads;
		if (e.simd !== !1) {
			if (e.simd === "relaxed") {
				if (!ut()) throw Error("Relaxed WebAssembly SIMD is not supported in the current environment.");
			} else if (!lt()) throw Error("WebAssembly SIMD is not supported in the current environment.");
		}
		let r = ct();
		n > 1 && !r && (typeof self < "u" && !self.crossOriginIsolated && console.warn("env.wasm.numThreads is set to " + n + ", but this will not work unless you enable crossOriginIsolated mode. See https://web.dev/cross-origin-isolation-guide/ for more info."), console.warn("WebAssembly multi-threading is not supported in the current environment. Falling back to single-threading."), e.numThreads = n = 1);
		let i = e.wasmPaths, a = typeof i == "string" ? i : void 0, o = i?.mjs, s = o?.href ?? o, c = i?.wasm, l = c?.href ?? c, u = e.wasmBinary, [d, f] = await rt(s, a, n > 1, !!u || !!l), p = !1, m = [];
		if (t > 0 && m.push(new Promise((e) => {
			setTimeout(() => {
				p = !0, e();
			}, t);
		})), m.push(new Promise((e, t) => {
			let r = { numThreads: n };
			if (u) r.wasmBinary = u, r.locateFile = (e) => e;
			else if (l || a) r.locateFile = (e) => l ?? a + e;
			else if (s && s.indexOf("blob:") !== 0) r.locateFile = (e) => new URL(e, s).href;
			else if (d) {
				let e = Je();
				e && (r.locateFile = (t) => e + t);
			}
			f(r).then((t) => {
				L = !1, ot = !0, at = t, e(), d && URL.revokeObjectURL(d);
			}, (e) => {
				L = !1, st = !0, t(e);
			});
		})), await Promise.race(m), p) throw Error(`WebAssembly backend initializing failed due to timeout: ${t}ms`);
	}, R = () => {
		if (ot && at) return at;
		throw Error("WebAssembly is not initialized yet.");
	};
}), B, ft, V, pt = y(() => {
	z(), B = (e, t) => {
		let n = R(), r = n.lengthBytesUTF8(e) + 1, i = n._malloc(r);
		return n.stringToUTF8(e, i, r), t.push(i), i;
	}, ft = (e, t, n, r) => {
		if (typeof e == "object" && e) {
			if (n.has(e)) throw Error("Circular reference in options");
			n.add(e);
		}
		Object.entries(e).forEach(([e, i]) => {
			let a = t ? t + e : e;
			if (typeof i == "object") ft(i, a + ".", n, r);
			else if (typeof i == "string" || typeof i == "number") r(a, i.toString());
			else if (typeof i == "boolean") r(a, i ? "1" : "0");
			else throw Error(`Can't handle extra config type: ${typeof i}`);
		});
	}, V = (e) => {
		let t = R(), n = t.stackSave();
		try {
			let n = t.PTR_SIZE, r = t.stackAlloc(2 * n);
			t._OrtGetLastError(r, r + n);
			let i = Number(t.getValue(r, n === 4 ? "i32" : "i64")), a = t.getValue(r + n, "*"), o = a ? t.UTF8ToString(a) : "";
			throw Error(`${e} ERROR_CODE: ${i}, ERROR_MESSAGE: ${o}`);
		} finally {
			t.stackRestore(n);
		}
	};
}), mt, ht = y(() => {
	z(), pt(), mt = (e) => {
		let t = R(), n = 0, r = [], i = e || {};
		try {
			if (e?.logSeverityLevel === void 0) i.logSeverityLevel = 2;
			else if (typeof e.logSeverityLevel != "number" || !Number.isInteger(e.logSeverityLevel) || e.logSeverityLevel < 0 || e.logSeverityLevel > 4) throw Error(`log severity level is not valid: ${e.logSeverityLevel}`);
			if (e?.logVerbosityLevel === void 0) i.logVerbosityLevel = 0;
			else if (typeof e.logVerbosityLevel != "number" || !Number.isInteger(e.logVerbosityLevel)) throw Error(`log verbosity level is not valid: ${e.logVerbosityLevel}`);
			e?.terminate === void 0 && (i.terminate = !1);
			let a = 0;
			return e?.tag !== void 0 && (a = B(e.tag, r)), n = t._OrtCreateRunOptions(i.logSeverityLevel, i.logVerbosityLevel, !!i.terminate, a), n === 0 && V("Can't create run options."), e?.extra !== void 0 && ft(e.extra, "", /* @__PURE__ */ new WeakSet(), (e, i) => {
				let a = B(e, r), o = B(i, r);
				t._OrtAddRunConfigEntry(n, a, o) !== 0 && V(`Can't set a run config entry: ${e} - ${i}.`);
			}), [n, r];
		} catch (e) {
			throw n !== 0 && t._OrtReleaseRunOptions(n), r.forEach((e) => t._free(e)), e;
		}
	};
}), gt, _t, vt, H, yt, bt, xt = y(() => {
	z(), pt(), gt = (e) => {
		switch (e) {
			case "disabled": return 0;
			case "basic": return 1;
			case "extended": return 2;
			case "layout": return 3;
			case "all": return 99;
			default: throw Error(`unsupported graph optimization level: ${e}`);
		}
	}, _t = (e) => {
		switch (e) {
			case "sequential": return 0;
			case "parallel": return 1;
			default: throw Error(`unsupported execution mode: ${e}`);
		}
	}, vt = (e) => {
		e.extra ||= {}, e.extra.session || (e.extra.session = {});
		let t = e.extra.session;
		t.use_ort_model_bytes_directly ||= "1", e.executionProviders && e.executionProviders.some((e) => (typeof e == "string" ? e : e.name) === "webgpu") && (e.enableMemPattern = !1);
	}, H = (e, t, n, r) => {
		let i = B(t, r), a = B(n, r);
		R()._OrtAddSessionConfigEntry(e, i, a) !== 0 && V(`Can't set a session config entry: ${t} - ${n}.`);
	}, yt = async (e, t, n) => {
		let r = t.executionProviders;
		for (let t of r) {
			let r = typeof t == "string" ? t : t.name, i = [];
			switch (r) {
				case "webnn":
					if (r = "WEBNN", H(e, "session.disable_quant_qdq", "1", n), H(e, "session.disable_qdq_constant_folding", "1", n), typeof t != "string") {
						let r = t?.deviceType;
						r && H(e, "deviceType", r, n);
					}
					break;
				case "webgpu":
					if (r = "JS", typeof t != "string") {
						let r = t;
						if (r?.preferredLayout) {
							if (r.preferredLayout !== "NCHW" && r.preferredLayout !== "NHWC") throw Error(`preferredLayout must be either 'NCHW' or 'NHWC': ${r.preferredLayout}`);
							H(e, "preferredLayout", r.preferredLayout, n);
						}
					}
					break;
				case "wasm":
				case "cpu": continue;
				default: throw Error(`not supported execution provider: ${r}`);
			}
			let a = B(r, n), o = i.length, s = 0, c = 0;
			if (o > 0) {
				s = R()._malloc(o * R().PTR_SIZE), n.push(s), c = R()._malloc(o * R().PTR_SIZE), n.push(c);
				for (let e = 0; e < o; e++) R().setValue(s + e * R().PTR_SIZE, i[e][0], "*"), R().setValue(c + e * R().PTR_SIZE, i[e][1], "*");
			}
			await R()._OrtAppendExecutionProvider(e, a, s, c, o) !== 0 && V(`Can't append execution provider: ${r}.`);
		}
	}, bt = async (e) => {
		let t = R(), n = 0, r = [], i = e || {};
		vt(i);
		try {
			let e = gt(i.graphOptimizationLevel ?? "all"), a = _t(i.executionMode ?? "sequential"), o = typeof i.logId == "string" ? B(i.logId, r) : 0, s = i.logSeverityLevel ?? 2;
			if (!Number.isInteger(s) || s < 0 || s > 4) throw Error(`log severity level is not valid: ${s}`);
			let c = i.logVerbosityLevel ?? 0;
			if (!Number.isInteger(c) || c < 0 || c > 4) throw Error(`log verbosity level is not valid: ${c}`);
			let l = typeof i.optimizedModelFilePath == "string" ? B(i.optimizedModelFilePath, r) : 0;
			if (n = t._OrtCreateSessionOptions(e, !!i.enableCpuMemArena, !!i.enableMemPattern, a, !!i.enableProfiling, 0, o, s, c, l), n === 0 && V("Can't create session options."), i.executionProviders && await yt(n, i, r), i.enableGraphCapture !== void 0) {
				if (typeof i.enableGraphCapture != "boolean") throw Error(`enableGraphCapture must be a boolean value: ${i.enableGraphCapture}`);
				H(n, "enableGraphCapture", i.enableGraphCapture.toString(), r);
			}
			if (i.freeDimensionOverrides) for (let [e, a] of Object.entries(i.freeDimensionOverrides)) {
				if (typeof e != "string") throw Error(`free dimension override name must be a string: ${e}`);
				if (typeof a != "number" || !Number.isInteger(a) || a < 0) throw Error(`free dimension override value must be a non-negative integer: ${a}`);
				let i = B(e, r);
				t._OrtAddFreeDimensionOverride(n, i, a) !== 0 && V(`Can't set a free dimension override: ${e} - ${a}.`);
			}
			return i.extra !== void 0 && ft(i.extra, "", /* @__PURE__ */ new WeakSet(), (e, t) => {
				H(n, e, t, r);
			}), [n, r];
		} catch (e) {
			throw n !== 0 && t._OrtReleaseSessionOptions(n) !== 0 && V("Can't release session options."), r.forEach((e) => t._free(e)), e;
		}
	};
}), U, St, W, Ct, wt, Tt, Et, Dt, Ot = y(() => {
	U = (e) => {
		switch (e) {
			case "int8": return 3;
			case "uint8": return 2;
			case "bool": return 9;
			case "int16": return 5;
			case "uint16": return 4;
			case "int32": return 6;
			case "uint32": return 12;
			case "float16": return 10;
			case "float32": return 1;
			case "float64": return 11;
			case "string": return 8;
			case "int64": return 7;
			case "uint64": return 13;
			case "int4": return 22;
			case "uint4": return 21;
			default: throw Error(`unsupported data type: ${e}`);
		}
	}, St = (e) => {
		switch (e) {
			case 3: return "int8";
			case 2: return "uint8";
			case 9: return "bool";
			case 5: return "int16";
			case 4: return "uint16";
			case 6: return "int32";
			case 12: return "uint32";
			case 10: return "float16";
			case 1: return "float32";
			case 11: return "float64";
			case 8: return "string";
			case 7: return "int64";
			case 13: return "uint64";
			case 22: return "int4";
			case 21: return "uint4";
			default: throw Error(`unsupported data type: ${e}`);
		}
	}, W = (e, t) => {
		let n = [
			-1,
			4,
			1,
			1,
			2,
			2,
			4,
			8,
			-1,
			1,
			2,
			8,
			4,
			8,
			-1,
			-1,
			-1,
			-1,
			-1,
			-1,
			-1,
			.5,
			.5
		][e], r = typeof t == "number" ? t : t.reduce((e, t) => e * t, 1);
		return n > 0 ? Math.ceil(r * n) : void 0;
	}, Ct = (e) => {
		switch (e) {
			case "float16": return typeof Float16Array < "u" ? Float16Array : Uint16Array;
			case "float32": return Float32Array;
			case "uint8": return Uint8Array;
			case "int8": return Int8Array;
			case "uint16": return Uint16Array;
			case "int16": return Int16Array;
			case "int32": return Int32Array;
			case "bool": return Uint8Array;
			case "float64": return Float64Array;
			case "uint32": return Uint32Array;
			case "int64": return BigInt64Array;
			case "uint64": return BigUint64Array;
			default: throw Error(`unsupported type: ${e}`);
		}
	}, wt = (e) => {
		switch (e) {
			case "verbose": return 0;
			case "info": return 1;
			case "warning": return 2;
			case "error": return 3;
			case "fatal": return 4;
			default: throw Error(`unsupported logging level: ${e}`);
		}
	}, Tt = (e) => e === "float32" || e === "float16" || e === "int32" || e === "int64" || e === "uint32" || e === "uint8" || e === "bool" || e === "uint4" || e === "int4", Et = (e) => e === "float32" || e === "float16" || e === "int32" || e === "int64" || e === "uint32" || e === "uint64" || e === "int8" || e === "uint8" || e === "bool" || e === "uint4" || e === "int4", Dt = (e) => {
		switch (e) {
			case "none": return 0;
			case "cpu": return 1;
			case "cpu-pinned": return 2;
			case "texture": return 3;
			case "gpu-buffer": return 4;
			case "ml-tensor": return 5;
			default: throw Error(`unsupported data location: ${e}`);
		}
	};
}), kt, At = y(() => {
	ze(), kt = async (e) => {
		if (typeof e == "string") {
			let t = await fetch(e);
			if (!t.ok) throw Error(`failed to load external data file: ${e}`);
			let n = t.headers.get("Content-Length"), r = n ? parseInt(n, 10) : 0;
			if (r < 1073741824) return new Uint8Array(await t.arrayBuffer());
			{
				if (!t.body) throw Error(`failed to load external data file: ${e}, no response body.`);
				let n = t.body.getReader(), i;
				try {
					i = new ArrayBuffer(r);
				} catch (e) {
					if (e instanceof RangeError) {
						let e = Math.ceil(r / 65536);
						i = new WebAssembly.Memory({
							initial: e,
							maximum: e
						}).buffer;
					} else throw e;
				}
				let a = 0;
				for (;;) {
					let { done: e, value: t } = await n.read();
					if (e) break;
					let r = t.byteLength;
					new Uint8Array(i, a, r).set(t), a += r;
				}
				return new Uint8Array(i, 0, r);
			}
		}
		return e instanceof Blob ? new Uint8Array(await e.arrayBuffer()) : e instanceof Uint8Array ? e : new Uint8Array(e);
	};
}), jt, Mt, Nt, G, Pt, Ft, It, Lt, Rt, zt, Bt, Vt, Ht, Ut = y(() => {
	F(), ht(), xt(), Ot(), z(), pt(), At(), jt = (e, t) => {
		R()._OrtInit(e, t) !== 0 && V("Can't initialize onnxruntime.");
	}, Mt = async (e) => {
		jt(e.wasm.numThreads, wt(e.logLevel));
	}, Nt = async (e, t) => {
		R().asyncInit?.();
		let n = e.webgpu.adapter;
		if (t === "webgpu") {
			if (typeof navigator > "u" || !navigator.gpu) throw Error("WebGPU is not supported in current environment");
			if (n) {
				if (typeof n.limits != "object" || typeof n.features != "object" || typeof n.requestDevice != "function") throw Error("Invalid GPU adapter set in `env.webgpu.adapter`. It must be a GPUAdapter object.");
			} else {
				let t = e.webgpu.powerPreference;
				if (t !== void 0 && t !== "low-power" && t !== "high-performance") throw Error(`Invalid powerPreference setting: "${t}"`);
				let r = e.webgpu.forceFallbackAdapter;
				if (r !== void 0 && typeof r != "boolean") throw Error(`Invalid forceFallbackAdapter setting: "${r}"`);
				if (n = await navigator.gpu.requestAdapter({
					powerPreference: t,
					forceFallbackAdapter: r
				}), !n) throw Error("Failed to get GPU adapter. You may need to enable flag \"--enable-unsafe-webgpu\" if you are using Chrome.");
			}
		}
		if (t === "webnn" && (typeof navigator > "u" || !navigator.ml)) throw Error("WebNN is not supported in current environment");
	}, G = /* @__PURE__ */ new Map(), Pt = (e) => {
		let t = R(), n = t.stackSave();
		try {
			let n = t.PTR_SIZE, r = t.stackAlloc(2 * n);
			t._OrtGetInputOutputCount(e, r, r + n) !== 0 && V("Can't get session input/output count.");
			let i = n === 4 ? "i32" : "i64";
			return [Number(t.getValue(r, i)), Number(t.getValue(r + n, i))];
		} finally {
			t.stackRestore(n);
		}
	}, Ft = (e, t) => {
		let n = R(), r = n.stackSave(), i = 0;
		try {
			let r = n.PTR_SIZE, a = n.stackAlloc(2 * r);
			n._OrtGetInputOutputMetadata(e, t, a, a + r) !== 0 && V("Can't get session input/output metadata.");
			let o = Number(n.getValue(a, "*"));
			i = Number(n.getValue(a + r, "*"));
			let s = n.HEAP32[i / 4];
			if (s === 0) return [o, 0];
			let c = n.HEAPU32[i / 4 + 1], l = [];
			for (let e = 0; e < c; e++) {
				let t = Number(n.getValue(i + 8 + e * r, "*"));
				l.push(t === 0 ? Number(n.getValue(i + 8 + (e + c) * r, "*")) : n.UTF8ToString(t));
			}
			return [
				o,
				s,
				l
			];
		} finally {
			n.stackRestore(r), i !== 0 && n._OrtFree(i);
		}
	}, It = (e) => {
		let t = R(), n = t._malloc(e.byteLength);
		if (n === 0) throw Error(`Can't create a session. failed to allocate a buffer of size ${e.byteLength}.`);
		return t.HEAPU8.set(e, n), [n, e.byteLength];
	}, Lt = async (e, t) => {
		let n, r, i = R();
		Array.isArray(e) ? [n, r] = e : e.buffer === i.HEAPU8.buffer ? [n, r] = [e.byteOffset, e.byteLength] : [n, r] = It(e);
		let a = 0, o = 0, s = [], c = [], l = [];
		try {
			if ([o, s] = await bt(t), t?.externalData && i.mountExternalData) {
				let e = [];
				for (let n of t.externalData) {
					let t = typeof n == "string" ? n : n.path, r = typeof n == "string" ? n : n.data;
					e.push(kt(r).then((e) => {
						i.mountExternalData(t, e);
					}));
				}
				await Promise.all(e);
			}
			for (let e of t?.executionProviders ?? []) if ((typeof e == "string" ? e : e.name) === "webnn") {
				if (i.shouldTransferToMLTensor = !1, typeof e != "string") {
					let t = e, n = t?.context, r = t?.gpuDevice, a = t?.deviceType, o = t?.powerPreference;
					i.currentContext = n || (r ? await i.webnnCreateMLContext(r) : await i.webnnCreateMLContext({
						deviceType: a,
						powerPreference: o
					}));
				} else i.currentContext = await i.webnnCreateMLContext();
				break;
			}
			a = await i._OrtCreateSession(n, r, o), i.webgpuOnCreateSession?.(a), a === 0 && V("Can't create a session."), i.jsepOnCreateSession?.(), i.currentContext && (i.webnnRegisterMLContext(a, i.currentContext), i.currentContext = void 0, i.shouldTransferToMLTensor = !0);
			let [e, u] = Pt(a), d = !!t?.enableGraphCapture, f = [], p = [], m = [], h = [];
			for (let t = 0; t < e; t++) {
				let [e, n, r] = Ft(a, t);
				e === 0 && V("Can't get an input name."), c.push(e);
				let o = i.UTF8ToString(e);
				f.push(o), m.push(n === 0 ? {
					name: o,
					isTensor: !1
				} : {
					name: o,
					isTensor: !0,
					type: St(n),
					shape: r
				});
			}
			for (let t = 0; t < u; t++) {
				let [n, r, o] = Ft(a, t + e);
				n === 0 && V("Can't get an output name."), l.push(n);
				let s = i.UTF8ToString(n);
				p.push(s), h.push(r === 0 ? {
					name: s,
					isTensor: !1
				} : {
					name: s,
					isTensor: !0,
					type: St(r),
					shape: o
				});
			}
			return G.set(a, [
				a,
				c,
				l,
				null,
				d,
				!1
			]), [
				a,
				f,
				p,
				m,
				h
			];
		} catch (e) {
			throw c.forEach((e) => i._OrtFree(e)), l.forEach((e) => i._OrtFree(e)), a !== 0 && i._OrtReleaseSession(a) !== 0 && V("Can't release session."), e;
		} finally {
			i._free(n), o !== 0 && i._OrtReleaseSessionOptions(o) !== 0 && V("Can't release session options."), s.forEach((e) => i._free(e)), i.unmountExternalData?.();
		}
	}, Rt = (e) => {
		let t = R(), n = G.get(e);
		if (!n) throw Error(`cannot release session. invalid session id: ${e}`);
		let [r, i, a, o, s] = n;
		o && (s && t._OrtClearBoundOutputs(o.handle) !== 0 && V("Can't clear bound outputs."), t._OrtReleaseBinding(o.handle) !== 0 && V("Can't release IO binding.")), t.jsepOnReleaseSession?.(e), t.webnnOnReleaseSession?.(e), t.webgpuOnReleaseSession?.(e), i.forEach((e) => t._OrtFree(e)), a.forEach((e) => t._OrtFree(e)), t._OrtReleaseSession(r) !== 0 && V("Can't release session."), G.delete(e);
	}, zt = async (e, t, n, r, i, a, o = !1) => {
		if (!e) {
			t.push(0);
			return;
		}
		let s = R(), c = s.PTR_SIZE, l = e[0], u = e[1], d = e[3], f = d, p, m;
		if (l === "string" && (d === "gpu-buffer" || d === "ml-tensor")) throw Error("String tensor is not supported on GPU.");
		if (o && d !== "gpu-buffer") throw Error(`External buffer must be provided for input/output index ${a} when enableGraphCapture is true.`);
		if (d === "gpu-buffer") {
			let t = e[2].gpuBuffer;
			m = W(U(l), u);
			{
				let e = s.jsepRegisterBuffer;
				if (!e) throw Error("Tensor location \"gpu-buffer\" is not supported without using WebGPU.");
				p = e(r, a, t, m);
			}
		} else if (d === "ml-tensor") {
			let t = e[2].mlTensor;
			m = W(U(l), u);
			let n = s.webnnRegisterMLTensor;
			if (!n) throw Error("Tensor location \"ml-tensor\" is not supported without using WebNN.");
			p = n(r, t, U(l), u);
		} else {
			let t = e[2];
			if (Array.isArray(t)) {
				m = c * t.length, p = s._malloc(m), n.push(p);
				for (let e = 0; e < t.length; e++) {
					if (typeof t[e] != "string") throw TypeError(`tensor data at index ${e} is not a string`);
					s.setValue(p + e * c, B(t[e], n), "*");
				}
			} else {
				let e = s.webnnIsGraphInput, a = s.webnnIsGraphOutput;
				if (l !== "string" && e && a) {
					let o = s.UTF8ToString(i);
					if (e(r, o) || a(r, o)) {
						let e = U(l);
						m = W(e, u), f = "ml-tensor";
						let n = s.webnnCreateTemporaryTensor, i = s.webnnUploadTensor;
						if (!n || !i) throw Error("Tensor location \"ml-tensor\" is not supported without using WebNN.");
						let a = await n(r, e, u);
						i(a, new Uint8Array(t.buffer, t.byteOffset, t.byteLength)), p = a;
					} else m = t.byteLength, p = s._malloc(m), n.push(p), s.HEAPU8.set(new Uint8Array(t.buffer, t.byteOffset, m), p);
				} else m = t.byteLength, p = s._malloc(m), n.push(p), s.HEAPU8.set(new Uint8Array(t.buffer, t.byteOffset, m), p);
			}
		}
		let h = s.stackSave(), g = s.stackAlloc(4 * u.length);
		try {
			u.forEach((e, t) => s.setValue(g + t * c, e, c === 4 ? "i32" : "i64"));
			let e = s._OrtCreateTensor(U(l), p, m, g, u.length, Dt(f));
			e === 0 && V(`Can't create tensor for input/output. session=${r}, index=${a}.`), t.push(e);
		} finally {
			s.stackRestore(h);
		}
	}, Bt = async (e, t, n, r, i, a) => {
		let o = R(), s = o.PTR_SIZE, c = G.get(e);
		if (!c) throw Error(`cannot run inference. invalid session id: ${e}`);
		let l = c[0], u = c[1], d = c[2], f = c[3], p = c[4];
		c[5];
		let m = t.length, h = r.length, g = 0, _ = [], v = [], y = [], b = [], ee = [], x = o.stackSave(), S = o.stackAlloc(m * s), C = o.stackAlloc(m * s), w = o.stackAlloc(h * s), te = o.stackAlloc(h * s);
		try {
			[g, _] = mt(a), N("wasm prepareInputOutputTensor");
			for (let r = 0; r < m; r++) await zt(n[r], v, b, e, u[t[r]], t[r], p);
			for (let t = 0; t < h; t++) await zt(i[t], y, b, e, d[r[t]], m + r[t], p);
			P("wasm prepareInputOutputTensor");
			for (let e = 0; e < m; e++) o.setValue(S + e * s, v[e], "*"), o.setValue(C + e * s, u[t[e]], "*");
			for (let e = 0; e < h; e++) o.setValue(w + e * s, y[e], "*"), o.setValue(te + e * s, d[r[e]], "*");
			o.jsepOnRunStart?.(l), o.webnnOnRunStart?.(l);
			let c;
			c = await o._OrtRun(l, C, S, m, te, h, w, g), c !== 0 && V("failed to call OrtRun().");
			let x = [], ne = [];
			N("wasm ProcessOutputTensor");
			for (let t = 0; t < h; t++) {
				let n = Number(o.getValue(w + t * s, "*"));
				if (n === y[t] || ee.includes(y[t])) {
					x.push(i[t]), n !== y[t] && o._OrtReleaseTensor(n) !== 0 && V("Can't release tensor.");
					continue;
				}
				let a = o.stackSave(), c = o.stackAlloc(4 * s), l = !1, u, d = 0;
				try {
					o._OrtGetTensorData(n, c, c + s, c + 2 * s, c + 3 * s) !== 0 && V(`Can't access output tensor data on index ${t}.`);
					let i = s === 4 ? "i32" : "i64", a = Number(o.getValue(c, i));
					d = o.getValue(c + s, "*");
					let p = o.getValue(c + s * 2, "*"), m = Number(o.getValue(c + s * 3, i)), h = [];
					for (let e = 0; e < m; e++) h.push(Number(o.getValue(p + e * s, i)));
					o._OrtFree(p) !== 0 && V("Can't free memory for tensor dims.");
					let g = h.reduce((e, t) => e * t, 1);
					u = St(a);
					let _ = f?.outputPreferredLocations[r[t]];
					if (u === "string") {
						if (_ === "gpu-buffer" || _ === "ml-tensor") throw Error("String tensor is not supported on GPU.");
						let e = [];
						for (let t = 0; t < g; t++) {
							let n = o.getValue(d + t * s, "*"), r = o.getValue(d + (t + 1) * s, "*"), i = t === g - 1 ? void 0 : r - n;
							e.push(o.UTF8ToString(n, i));
						}
						x.push([
							u,
							h,
							e,
							"cpu"
						]);
					} else if (_ === "gpu-buffer" && g > 0) {
						let e = o.jsepGetBuffer;
						if (!e) throw Error("preferredLocation \"gpu-buffer\" is not supported without using WebGPU.");
						let t = e(d), r = W(a, g);
						if (r === void 0 || !Tt(u)) throw Error(`Unsupported data type: ${u}`);
						l = !0, x.push([
							u,
							h,
							{
								gpuBuffer: t,
								download: o.jsepCreateDownloader(t, r, u),
								dispose: () => {
									o._OrtReleaseTensor(n) !== 0 && V("Can't release tensor.");
								}
							},
							"gpu-buffer"
						]);
					} else if (_ === "ml-tensor" && g > 0) {
						let t = o.webnnEnsureTensor, r = o.webnnIsGraphInputOutputTypeSupported;
						if (!t || !r) throw Error("preferredLocation \"ml-tensor\" is not supported without using WebNN.");
						if (W(a, g) === void 0 || !Et(u)) throw Error(`Unsupported data type: ${u}`);
						if (!r(e, u, !1)) throw Error(`preferredLocation "ml-tensor" for ${u} output is not supported by current WebNN Context.`);
						let i = await t(e, d, a, h, !1);
						l = !0, x.push([
							u,
							h,
							{
								mlTensor: i,
								download: o.webnnCreateMLTensorDownloader(d, u),
								dispose: () => {
									o.webnnReleaseTensorId(d), o._OrtReleaseTensor(n);
								}
							},
							"ml-tensor"
						]);
					} else if (_ === "ml-tensor-cpu-output" && g > 0) {
						let e = o.webnnCreateMLTensorDownloader(d, u)(), t = x.length;
						l = !0, ne.push((async () => {
							let r = [t, await e];
							return o.webnnReleaseTensorId(d), o._OrtReleaseTensor(n), r;
						})()), x.push([
							u,
							h,
							[],
							"cpu"
						]);
					} else {
						let e = new (Ct(u))(g);
						new Uint8Array(e.buffer, e.byteOffset, e.byteLength).set(o.HEAPU8.subarray(d, d + e.byteLength)), x.push([
							u,
							h,
							e,
							"cpu"
						]);
					}
				} finally {
					o.stackRestore(a), u === "string" && d && o._free(d), l || o._OrtReleaseTensor(n);
				}
			}
			f && !p && (o._OrtClearBoundOutputs(f.handle) !== 0 && V("Can't clear bound outputs."), G.set(e, [
				l,
				u,
				d,
				f,
				p,
				!1
			]));
			for (let [e, t] of await Promise.all(ne)) x[e][2] = t;
			return P("wasm ProcessOutputTensor"), x;
		} finally {
			o.webnnOnRunEnd?.(l), o.stackRestore(x), v.forEach((e) => o._OrtReleaseTensor(e)), y.forEach((e) => o._OrtReleaseTensor(e)), b.forEach((e) => o._free(e)), g !== 0 && o._OrtReleaseRunOptions(g), _.forEach((e) => o._free(e));
		}
	}, Vt = (e) => {
		let t = R(), n = G.get(e);
		if (!n) throw Error("invalid session id");
		let r = n[0], i = t._OrtEndProfiling(r);
		i === 0 && V("Can't get an profile file name."), t._OrtFree(i);
	}, Ht = (e) => {
		let t = [];
		for (let n of e) {
			let e = n[2];
			!Array.isArray(e) && "buffer" in e && t.push(e.buffer);
		}
		return t;
	};
}), K, q, J, Wt, Gt, Kt, qt, Jt, Y, X, Yt, Xt, Zt, Qt, $t, en, tn, nn, rn = y(() => {
	F(), Ut(), z(), it(), K = () => !!E.wasm.proxy && typeof document < "u", J = !1, Wt = !1, Gt = !1, Jt = /* @__PURE__ */ new Map(), Y = (e, t) => {
		let n = Jt.get(e);
		n ? n.push(t) : Jt.set(e, [t]);
	}, X = () => {
		if (J || !Wt || Gt || !q) throw Error("worker not ready");
	}, Yt = (e) => {
		switch (e.data.type) {
			case "init-wasm":
				J = !1, e.data.err ? (Gt = !0, qt[1](e.data.err)) : (Wt = !0, qt[0]()), Kt &&= (URL.revokeObjectURL(Kt), void 0);
				break;
			case "init-ep":
			case "copy-from":
			case "create":
			case "release":
			case "run":
			case "end-profiling": {
				let t = Jt.get(e.data.type);
				e.data.err ? t.shift()[1](e.data.err) : t.shift()[0](e.data.out);
				break;
			}
		}
	}, Xt = async () => {
		if (!Wt) {
			if (J) throw Error("multiple calls to 'initWasm()' detected.");
			if (Gt) throw Error("previous call to 'initWasm()' failed.");
			if (J = !0, K()) return new Promise((e, t) => {
				q?.terminate(), tt().then(([n, r]) => {
					try {
						q = r, q.onerror = (e) => t(e), q.onmessage = Yt, qt = [e, t];
						let i = {
							type: "init-wasm",
							in: E
						};
						if (!i.in.wasm.wasmPaths && n) {
							let e = Je();
							e && (i.in.wasm.wasmPaths = e);
						}
						q.postMessage(i), Kt = n;
					} catch (e) {
						t(e);
					}
				}, t);
			});
			try {
				await dt(E.wasm), await Mt(E), Wt = !0;
			} catch (e) {
				throw Gt = !0, e;
			} finally {
				J = !1;
			}
		}
	}, Zt = async (e) => {
		if (K()) return X(), new Promise((t, n) => {
			Y("init-ep", [t, n]);
			let r = {
				type: "init-ep",
				in: {
					epName: e,
					env: E
				}
			};
			q.postMessage(r);
		});
		await Nt(E, e);
	}, Qt = async (e) => K() ? (X(), new Promise((t, n) => {
		Y("copy-from", [t, n]);
		let r = {
			type: "copy-from",
			in: { buffer: e }
		};
		q.postMessage(r, [e.buffer]);
	})) : It(e), $t = async (e, t) => {
		if (K()) {
			if (t?.preferredOutputLocation) throw Error("session option \"preferredOutputLocation\" is not supported for proxy.");
			return X(), new Promise((n, r) => {
				Y("create", [n, r]);
				let i = {
					type: "create",
					in: {
						model: e,
						options: { ...t }
					}
				}, a = [];
				e instanceof Uint8Array && a.push(e.buffer), q.postMessage(i, a);
			});
		}
		return Lt(e, t);
	}, en = async (e) => {
		if (K()) return X(), new Promise((t, n) => {
			Y("release", [t, n]);
			let r = {
				type: "release",
				in: e
			};
			q.postMessage(r);
		});
		Rt(e);
	}, tn = async (e, t, n, r, i, a) => {
		if (K()) {
			if (n.some((e) => e[3] !== "cpu")) throw Error("input tensor on GPU is not supported for proxy.");
			if (i.some((e) => e)) throw Error("pre-allocated output tensor is not supported for proxy.");
			return X(), new Promise((i, o) => {
				Y("run", [i, o]);
				let s = n, c = {
					type: "run",
					in: {
						sessionId: e,
						inputIndices: t,
						inputs: s,
						outputIndices: r,
						options: a
					}
				};
				q.postMessage(c, Ht(s));
			});
		}
		return Bt(e, t, n, r, i, a);
	}, nn = async (e) => {
		if (K()) return X(), new Promise((t, n) => {
			Y("end-profiling", [t, n]);
			let r = {
				type: "end-profiling",
				in: e
			};
			q.postMessage(r);
		});
		Vt(e);
	};
}), an, on, sn, cn = y(() => {
	F(), rn(), Ot(), ze(), At(), an = (e, t) => {
		switch (e.location) {
			case "cpu": return [
				e.type,
				e.dims,
				e.data,
				"cpu"
			];
			case "gpu-buffer": return [
				e.type,
				e.dims,
				{ gpuBuffer: e.gpuBuffer },
				"gpu-buffer"
			];
			case "ml-tensor": return [
				e.type,
				e.dims,
				{ mlTensor: e.mlTensor },
				"ml-tensor"
			];
			default: throw Error(`invalid data location: ${e.location} for ${t()}`);
		}
	}, on = (e) => {
		switch (e[3]) {
			case "cpu": return new A(e[0], e[2], e[1]);
			case "gpu-buffer": {
				let t = e[0];
				if (!Tt(t)) throw Error(`not supported data type: ${t} for deserializing GPU tensor`);
				let { gpuBuffer: n, download: r, dispose: i } = e[2];
				return A.fromGpuBuffer(n, {
					dataType: t,
					dims: e[1],
					download: r,
					dispose: i
				});
			}
			case "ml-tensor": {
				let t = e[0];
				if (!Et(t)) throw Error(`not supported data type: ${t} for deserializing MLTensor tensor`);
				let { mlTensor: n, download: r, dispose: i } = e[2];
				return A.fromMLTensor(n, {
					dataType: t,
					dims: e[1],
					download: r,
					dispose: i
				});
			}
			default: throw Error(`invalid data location: ${e[3]}`);
		}
	}, sn = class {
		async fetchModelAndCopyToWasmMemory(e) {
			return Qt(await kt(e));
		}
		async loadModel(e, t) {
			j();
			let n;
			n = typeof e == "string" ? await this.fetchModelAndCopyToWasmMemory(e) : e, [this.sessionId, this.inputNames, this.outputNames, this.inputMetadata, this.outputMetadata] = await $t(n, t), M();
		}
		async dispose() {
			return en(this.sessionId);
		}
		async run(e, t, n) {
			j();
			let r = [], i = [];
			Object.entries(e).forEach((e) => {
				let t = e[0], n = e[1], a = this.inputNames.indexOf(t);
				if (a === -1) throw Error(`invalid input '${t}'`);
				r.push(n), i.push(a);
			});
			let a = [], o = [];
			Object.entries(t).forEach((e) => {
				let t = e[0], n = e[1], r = this.outputNames.indexOf(t);
				if (r === -1) throw Error(`invalid output '${t}'`);
				a.push(n), o.push(r);
			});
			let s = r.map((e, t) => an(e, () => `input "${this.inputNames[i[t]]}"`)), c = a.map((e, t) => e ? an(e, () => `output "${this.outputNames[o[t]]}"`) : null), l = await tn(this.sessionId, i, s, o, c, n), u = {};
			for (let e = 0; e < l.length; e++) u[this.outputNames[o[e]]] = a[e] ?? on(l[e]);
			return M(), u;
		}
		startProfiling() {}
		endProfiling() {
			nn(this.sessionId);
		}
	};
}), ln = {};
b(ln, {
	OnnxruntimeWebAssemblyBackend: () => dn,
	initializeFlags: () => un,
	wasmBackend: () => fn
});
var un, dn, fn, pn = y(() => {
	F(), rn(), cn(), un = () => {
		(typeof E.wasm.initTimeout != "number" || E.wasm.initTimeout < 0) && (E.wasm.initTimeout = 0);
		let e = E.wasm.simd;
		if (typeof e != "boolean" && e !== void 0 && e !== "fixed" && e !== "relaxed" && (console.warn(`Property "env.wasm.simd" is set to unknown value "${e}". Reset it to \`false\` and ignore SIMD feature checking.`), E.wasm.simd = !1), typeof E.wasm.proxy != "boolean" && (E.wasm.proxy = !1), typeof E.wasm.trace != "boolean" && (E.wasm.trace = !1), typeof E.wasm.numThreads != "number" || !Number.isInteger(E.wasm.numThreads) || E.wasm.numThreads <= 0) {
			if (typeof self < "u" && !self.crossOriginIsolated) E.wasm.numThreads = 1;
			else {
				let e = typeof navigator > "u" ? v("node:os").cpus().length : navigator.hardwareConcurrency;
				E.wasm.numThreads = Math.min(4, Math.ceil((e || 1) / 2));
			}
		}
	}, dn = class {
		async init(e) {
			un(), await Xt(), await Zt(e);
		}
		async createInferenceSessionHandler(e, t) {
			let n = new sn();
			return await n.loadModel(e, t), n;
		}
	}, fn = new dn();
});
F(), F(), F();
var mn = "1.30.0";
{
	let e = (pn(), x(ln)).wasmBackend;
	w("cpu", e, 10), w("wasm", e, 10);
}
Object.defineProperty(E.versions, "web", {
	value: mn,
	enumerable: !0
});
//#endregion
//#region src/model.ts
var hn = "sightline-onnx-1", gn = "sightline-model", _n = "model.safetensors", vn = class e {
	manifest;
	confidence;
	sessions;
	bytes;
	constructor(e, t, n, r) {
		this.manifest = e, this.confidence = t, this.sessions = n, this.bytes = r;
	}
	static async load(t, n, i = xn()) {
		let a = await bn(), o = await wn(`${t.model}sightline.json`, a);
		if (o.format !== hn) throw Error(`the model has the format “${o.format}”, this program reads “${hn}”: export it again`);
		let s = wn(`${t.model}confidence.json`, a).catch(() => null), c = [
			"encoder",
			"start",
			"step"
		], l = new Tn(t.model, a, n), u = c.some((e) => o.graphs[e].external_data?.length), [d, f, ...p] = await Promise.all([
			l.fetchBytes(t.runtime, t.runtimeBytes).then(Dn),
			u ? l.fetch(_n, o.weights) : null,
			...c.map((e) => l.fetch(`${e}.onnx`, o.graphs[e].sha256, o.graphs[e].bytes))
		]);
		l.deleteOld().catch(() => {}), E.wasm.wasmBinary = d, E.wasm.wasmPaths = { mjs: t.runtimeScript }, E.wasm.numThreads = i, E.logLevel = "error";
		let m = {
			executionProviders: ["wasm"],
			logSeverityLevel: 3
		};
		f && (m.externalData = [{
			path: _n,
			data: f
		}]);
		let h = {};
		for (let [e, t] of c.entries()) h[t] = await Ne.create(p[e], m);
		let g = await s, _ = [f, ...p].reduce((e, t) => e + (t?.length ?? 0), 0);
		return new e(o, g && new r(g), h, _);
	}
	async encode(e) {
		let { size: t } = this.manifest.preprocess;
		return this.sessions.encoder.run({ pixels: new A("float32", e, [
			1,
			3,
			t,
			t
		]) }, ["grid", "pooled"]);
	}
	async start(e) {
		let t = Object.fromEntries(Object.keys(this.manifest.graphs.start.inputs).map((t) => [t, e[t]]));
		return new yn(this.sessions.step, this.manifest, await this.sessions.start.run(t));
	}
}, yn = class {
	session;
	vocabulary;
	photo = {};
	beam = {};
	wanted;
	constructor(e, t, n) {
		this.session = e, this.vocabulary = t.tokenizer.tokens.length;
		for (let [e, t] of Object.entries(n)) (e.startsWith("photo.") ? this.photo : this.beam)[e] = t;
		let r = Object.keys(t.graphs.step.outputs);
		this.wanted = r.filter((e) => e.startsWith("next.") || [
			"logits",
			"attention",
			"gate"
		].includes(e));
	}
	async step(e) {
		let t = new A("int64", BigInt64Array.from(e, BigInt), [e.length]), n = await this.session.run({
			token: t,
			...this.photo,
			...this.beam
		}, this.wanted);
		this.beam = Object.fromEntries(Object.keys(this.beam).map((e) => [e, n[e.replace("beam.", "next.")]]));
		let r = (e) => n[e]?.data;
		return {
			logits: r("logits"),
			attention: r("attention"),
			gate: r("gate")
		};
	}
	reorder(e) {
		for (let [t, n] of Object.entries(this.beam)) {
			let r = n.data, i = r.length / n.dims[0], a = new Float32Array(e.length * i);
			e.forEach((e, t) => a.set(r.subarray(e * i, (e + 1) * i), t * i)), this.beam[t] = new A("float32", a, [e.length, ...n.dims.slice(1)]);
		}
	}
};
async function bn() {
	try {
		return await caches.open(gn);
	} catch {
		return null;
	}
}
function xn() {
	return globalThis.crossOriginIsolated ? Math.max(1, Math.min(4, (navigator.hardwareConcurrency || 1) - 1)) : 1;
}
async function Sn(e) {
	if (!e.startsWith("file:")) return fetch(e, { cache: "no-cache" });
	let { readFile: t } = globalThis.process.getBuiltinModule("node:fs/promises"), n = await t(new URL(e));
	return new Response(n, { headers: { "Content-Length": String(n.length) } });
}
var Cn = (e) => e.split("/").pop();
async function wn(e, t) {
	try {
		let n = await Sn(e);
		if (n.ok) return await t?.put(e, n.clone()).catch(() => {}), await n.json();
		n.status === 404 && await t?.delete(e);
	} catch {}
	let n = await t?.match(e);
	if (!n) throw Error(`${Cn(e)} could not be fetched`);
	return n.json();
}
var Tn = class {
	folder;
	cache;
	progress;
	wanted = /* @__PURE__ */ new Set();
	done = 0;
	total = 0;
	constructor(e, t, n) {
		this.folder = e, this.cache = t, this.progress = n;
	}
	async fetch(e, t, n) {
		let r = this.folder + e, i = `${r}?${t}`;
		this.wanted.add(i);
		let a = await this.cache?.match(i), o = a ? new Uint8Array(await a.arrayBuffer()) : await this.fetchBytes(r, n);
		if (a) return o;
		if (!await On(o, t) || o.length !== (n ?? o.length)) throw Error(`${e} is not the file that sightline.json names: load the page again`);
		return await this.cache?.put(i, new Response(o)).catch(() => {}), o;
	}
	async fetchBytes(e, t) {
		t && (this.total += t);
		let n = await Sn(e).catch(() => null);
		if (!n?.ok || !n.body) throw Error(`${Cn(e)} could not be fetched${n ? ` (${n.status})` : ""}`);
		t || (this.total += Number(n.headers.get("Content-Length")));
		let r = [], i = n.body.getReader();
		for (let e = await i.read(); !e.done; e = await i.read()) r.push(e.value), this.progress(this.done += e.value.length, Math.max(this.done, this.total));
		return En(r);
	}
	async deleteOld() {
		for (let { url: e } of await this.cache?.keys() ?? []) e.startsWith(this.folder) && e.includes("?") && !this.wanted.has(e) && await this.cache?.delete(e);
	}
};
function En(e) {
	let t = new Uint8Array(e.reduce((e, t) => e + t.length, 0)), n = 0;
	for (let r of e) t.set(r, n), n += r.length;
	return t;
}
async function Dn(e) {
	if (e[0] !== 31 || e[1] !== 139) return e.buffer;
	let t = new Blob([e]).stream().pipeThrough(new DecompressionStream("gzip"));
	return new Response(t).arrayBuffer();
}
async function On(e, t) {
	if (!crypto.subtle) return !0;
	let n = new Uint8Array(await crypto.subtle.digest("SHA-256", e));
	return Array.from(n, (e) => e.toString(16).padStart(2, "0")).join("") === t;
}
//#endregion
//#region src/resample.ts
var kn = 22, An = 256;
function jn(e, t, n) {
	if (n.fit === "squash") return [
		0,
		0,
		e,
		t
	];
	let r = n.resize / Math.min(e, t), [i, a] = [e, t].map((e) => {
		let t = Math.max(n.resize, Math.trunc(e * r)), i = Hn((t - n.size) / 2);
		return [i * e / t, Math.min(e, (i + n.size) * e / t)];
	});
	return [
		i[0],
		a[0],
		i[1],
		a[1]
	];
}
function Mn(e, t, n, r) {
	let i = jn(t, n, r), { size: a } = r, o = Pn(t, i[0], i[2], a) ? Fn(t, i[0], i[2], r) : null, s = Pn(n, i[1], i[3], a) ? Fn(n, i[1], i[3], r) : null;
	if (o && s && n - a > 2 * Math.max(0, t - a)) return In(Ln(e, t, s, a), t, a, o, a);
	let c = s ? [s.first[0], Rn(s)] : [0, n], l = new Uint8ClampedArray(a * (c[1] - c[0]) * 3);
	for (let n = c[0]; n < c[1]; n += An) {
		let r = Math.min(c[1], n + An), i = zn(e(n, r)), s = o ? In(i, t, r - n, o, a) : i;
		l.set(s, (n - c[0]) * a * 3);
	}
	return s ? Ln((e, t) => l.subarray((e - c[0]) * a * 3, (t - c[0]) * a * 3), a, s, a, 3) : l;
}
function Nn(e, t) {
	let n = t.size * t.size, r = new Float32Array(3 * n);
	for (let i = 0; i < 3; i++) {
		let a = Math.fround(t.mean[i]), o = Math.fround(t.std[i]);
		for (let t = 0; t < n; t++) {
			let s = Math.fround(e[3 * t + i] / 255);
			r[i * n + t] = Math.fround(s - a) / o;
		}
	}
	return r;
}
function Pn(e, t, n, r) {
	return t !== 0 || n !== e || r !== e;
}
function Fn(e, t, n, r) {
	let i = r.interpolation === "bicubic" ? Bn : Vn, a = (n - t) / r.size, o = Math.max(a, 1), s = (r.interpolation === "bicubic" ? 2 : 1) * o, c = new Int32Array(r.size), l = new Int32Array(r.size), u = [];
	for (let n = 0; n < r.size; n++) {
		let r = t + (n + .5) * a;
		c[n] = Math.max(0, Math.trunc(r - s + .5)), l[n] = Math.min(e, Math.trunc(r + s + .5)) - c[n];
		let d = Array.from({ length: l[n] }, (e, t) => i((t + c[n] - r + .5) / o)), f = d.reduce((e, t) => e + t, 0);
		u.push(Int32Array.from(d, (e) => {
			let t = (f ? e / f : e) * 2 ** kn;
			return Math.trunc(t < 0 ? t - .5 : t + .5);
		}));
	}
	return {
		first: c,
		count: l,
		values: u
	};
}
function In(e, t, n, r, i) {
	let a = new Uint8ClampedArray(i * n * 3);
	for (let o = 0, s = 0; o < n; o++) for (let n = 0; n < i; n++, s += 3) {
		let i = r.values[n], c = 1 << 21, l = c, u = c;
		for (let a = 0, s = 3 * (o * t + r.first[n]); a < i.length; a++, s += 3) c += i[a] * e[s], l += i[a] * e[s + 1], u += i[a] * e[s + 2];
		a[s] = c >> kn, a[s + 1] = l >> kn, a[s + 2] = u >> kn;
	}
	return a;
}
function Ln(e, t, n, r, i = 4) {
	let a = 3 * t, o = new Int32Array(r * a).fill(1 << 21), s = Rn(n);
	for (let t = n.first[0]; t < s; t += An) {
		let c = Math.min(s, t + An), l = i === 4 ? zn(e(t, c)) : e(t, c);
		for (let e = 0; e < r; e++) {
			let r = Math.max(t, n.first[e]), i = Math.min(c, n.first[e] + n.count[e]);
			for (let s = r; s < i; s++) {
				let r = n.values[e][s - n.first[e]], i = (s - t) * a;
				for (let t = 0, n = e * a; t < a; t++, n++) o[n] += r * l[i + t];
			}
		}
	}
	let c = new Uint8ClampedArray(r * a);
	for (let e = 0; e < c.length; e++) c[e] = o[e] >> kn;
	return c;
}
function Rn(e) {
	let t = e.first.length - 1;
	return e.first[t] + e.count[t];
}
function zn(e) {
	let t = new Uint8ClampedArray(e.length / 4 * 3);
	for (let n = 0, r = 0; n < e.length; n += 4, r += 3) t[r] = e[n], t[r + 1] = e[n + 1], t[r + 2] = e[n + 2];
	return t;
}
function Bn(e) {
	let t = Math.abs(e);
	return t < 1 ? (1.5 * t - 2.5) * t * t + 1 : t < 2 ? ((-.5 * t + 2.5) * t - 4) * t + 2 : 0;
}
function Vn(e) {
	return Math.max(0, 1 - Math.abs(e));
}
function Hn(e) {
	let t = Math.floor(e), n = e - t;
	return n < .5 || n === .5 && t % 2 == 0 ? t : t + 1;
}
//#endregion
//#region src/photo.ts
var Un = 64 * 2 ** 20, Wn = 178956970, Gn = /^(\xff\xd8\xff|\x89PNG|GIF8|BM|RIFF[^]{4}WEBP)/, Z = class extends Error {};
async function Kn(e, t) {
	if (!(e instanceof Blob)) return qn(Xn(e), e.width, e.height, t);
	let n = await Jn(e);
	try {
		return qn(Zn(n), n.width, n.height, t);
	} finally {
		n.close();
	}
}
function qn(e, t, n, r) {
	if (t * n > Wn) throw new Z(`this photo has ${t} × ${n} pixels: shrink it first`);
	let i = Mn(e, t, n, r), [a, o, s, c] = jn(t, n, r);
	return {
		square: i,
		pixels: Nn(i, r),
		frame: [
			a / t,
			o / n,
			s / t,
			c / n
		]
	};
}
async function Jn(e) {
	if (typeof createImageBitmap != "function") throw new Z("photos are decoded by browsers only: pass { data, width, height } with RGBA pixels");
	if (!e.size) throw new Z("this file is empty: choose another one");
	if (e.size > Un) throw new Z("this photo is larger than 64 MB: shrink it first");
	try {
		return await createImageBitmap(e, {
			imageOrientation: "from-image",
			colorSpaceConversion: "none",
			premultiplyAlpha: "premultiply"
		});
	} catch {
		throw await Yn(e) ? new Z("this photo is cut off or damaged: copy or download it again") : new Z("this browser cannot read that photo: try a JPEG, PNG or WebP");
	}
}
async function Yn(e) {
	try {
		return Gn.test(String.fromCharCode(...new Uint8Array(await e.slice(0, 12).arrayBuffer())));
	} catch {
		return !1;
	}
}
function Xn({ data: e, width: t, height: n }) {
	if (!(t > 0 && n > 0) || e.length !== 4 * t * n) throw new Z(`${t} × ${n} pixels of RGBA are ${4 * t * n} bytes, these are ${e.length}`);
	return (n, r) => {
		let i = new Uint8ClampedArray(e.subarray(4 * t * n, 4 * t * r));
		for (let e = 3; e < i.length; e += 4) {
			let t = i[e] / 255;
			if (t < 1) for (let n = e - 3; n < e; n++) i[n] = i[n] * t + 255 * (1 - t);
		}
		return i;
	};
}
function Zn(e) {
	let t = null;
	return (n, r) => {
		t?.height !== r - n && (t = new OffscreenCanvas(e.width, r - n));
		let i = t.getContext("2d", { willReadFrequently: !0 });
		return i.fillStyle = "#fff", i.fillRect(0, 0, e.width, r - n), i.drawImage(e, 0, n, e.width, r - n, 0, 0, e.width, r - n), i.getImageData(0, 0, e.width, r - n).data;
	};
}
var Qn = /* @__PURE__ */ new Set([
	"n't",
	"'s",
	"'re",
	"'ve",
	"'ll",
	"'d",
	"'m"
]), $n = "▁";
function er(e, t) {
	let n = [], r = !0;
	return e.forEach((e, i) => {
		if (e <= 3) return;
		let a = t.tokens[e], o = n[n.length - 1], s = {
			word: Qn.has(a),
			char: !r,
			bpe: !a.startsWith($n)
		}[t.name];
		t.name === "char" && a === " " ? (r = !0, o?.positions.push(i)) : s && o ? (o.text += a, o.positions.push(i)) : (r = !1, n.push({
			text: t.name === "bpe" && a.startsWith($n) ? a.slice(1) : a,
			positions: [i]
		}));
	}), n.filter((e) => e.text);
}
function tr(e) {
	return {
		"<end>": "(the end)",
		" ": "(a space)"
	}[e] ?? e.replace(/^▁/, "");
}
//#endregion
//#region src/search.ts
var nr = 5, { fround: Q } = Math;
async function rr(e, t, n, r) {
	let { beam: i, length_penalty: a, max_length: o } = t, { vocabulary: s } = e, c = [], l = [null], u = [0], d = [1], f = null;
	for (let p = 0; p < o - 1; p++) {
		let m = await e.step(d), h = l.map((e, n) => or(ar(m.logits.subarray(n * s, (n + 1) * s)), e, p, t)), g = sr(h, u, 2 * i);
		g.slice(0, i).forEach(({ row: e, token: t, total: n }) => {
			t === 2 && c.push({
				last: l[e],
				endLogProb: h[e][2],
				score: Q(n / (p + 1) ** a)
			});
		}), c.sort((e, t) => t.score - e.score).splice(i);
		let _ = h.map((e) => ur(() => sr([e], [0], 6))), v = g.filter(({ token: e }) => e !== 2).slice(0, i), y = v.map(({ row: e, token: t }) => lr(l[e], t, h[e][t], m, e, l.length, _[e]())), b = v.length ? v[0].total : -Infinity, ee = (e) => {
			if (c.length < e) return !v.length;
			let { score: t } = c[e - 1];
			return t >= Q(b / (o - 1) ** a) || c.length === i && t >= Q(b / (p + 2) ** a);
		};
		if (f === null && ee(1) && (f = c.length ? pr(c[0]) : null), [l, u] = [y, v.map(({ total: e }) => e)], ee(Math.min(n, i)) || !v.length || p === o - 2) break;
		r && f === null && await r($(y[0], 0)), i > 1 && e.reorder(v.map(({ row: e }) => e)), d = v.map(({ token: e }) => e);
	}
	let p = c.map(pr), m = l.map((e, t) => $(e, Q(u[t] / (o - 1) ** a))), h = [...p, ...p.length && f ? [] : m.sort((e, t) => t.score - e.score)];
	if (!h.length) throw Error("the model gives no usable probabilities: its files are damaged");
	let g = f ?? h[0];
	return [g, ...h.filter((e) => e.tokens.join() !== g.tokens.join())].slice(0, Math.max(1, n));
}
async function ir(e, t, n, r) {
	let { length_penalty: i, max_length: a } = t, o = null, s = 0, c = 1;
	for (let l = 0; l < a - 1; l++) {
		let a = await e.step([c]), u = or(ar(a.logits), o, l, t);
		if (c = cr(ar(u.map((e) => e / t.temperature)).map(Math.exp), n()), s = Q(s + u[c]), c === 2) return pr({
			last: o,
			endLogProb: u[2],
			score: Q(s / (l + 1) ** i)
		});
		o = lr(o, c, u[c], a, 0, 1, sr([u], [0], 6)), r && await r($(o, 0));
	}
	return $(o, Q(s / (a - 1) ** i));
}
function ar(e) {
	let t = -Infinity, n = 0;
	for (let n of e) n > t && (t = n);
	let r = new Float32Array(e.length);
	for (let i = 0; i < e.length; i++) n += Math.exp(r[i] = e[i] - t);
	let i = Q(Math.log(n));
	for (let t = 0; t < e.length; t++) r[t] -= i;
	return r;
}
function or(e, t, n, r) {
	let i = r.no_repeat_ngram, a = e[2];
	if (e[0] = e[1] = -Infinity, r.allow_unknown || (e[3] = -Infinity), n < r.min_length && (e[2] = -Infinity), !i || n < i) return e;
	let o = fr(t), s = o.slice(o.length - (i - 1)).join();
	for (let t = 0; t + i <= o.length; t++) (i === 1 || o.slice(t, t + i - 1).join() === s) && (e[o[t + i - 1]] = -Infinity);
	return n < r.min_length && e.every((e) => e === -Infinity) && (e[2] = a), e;
}
function sr(e, t, n) {
	let r = [];
	return e.forEach((e, i) => {
		for (let a = 0; a < e.length; a++) {
			let o = Q(t[i] + e[a]);
			if (!(o > -Infinity) || r.length === n && o <= r[n - 1].total) continue;
			let s = r.length;
			for (; s > 0 && r[s - 1].total < o;) s--;
			r.splice(s, 0, {
				row: i,
				token: a,
				total: o
			}), r.length > n && r.pop();
		}
	}), r;
}
function cr(e, t) {
	let n = 0, r = 0, i = 0;
	for (let t of e) n += t;
	for (let a = 0; a < e.length; a++) if (r += e[a], e[a] > 0 && (i = a), r > t * n) return a;
	return i;
}
function lr(e, t, n, r, i, a, o) {
	let { attention: s, gate: c } = r, l = s ? s.length / a : 0;
	return {
		previous: e,
		token: t,
		logProb: n,
		length: (e?.length ?? 0) + 1,
		gate: c?.[i],
		attention: s?.slice(i * l, (i + 1) * l),
		alternatives: o.filter((e) => e.token !== t).slice(0, nr).map((e) => ({
			token: e.token,
			probability: Math.exp(e.total)
		}))
	};
}
function ur(e) {
	let t;
	return () => t ??= e();
}
function dr(e) {
	let t = [];
	for (let n = e; n; n = n.previous) t.push(n);
	return t.reverse();
}
function fr(e) {
	return dr(e).map(({ token: e }) => e);
}
function pr({ last: e, endLogProb: t, score: n }) {
	let r = $(e, n);
	return {
		...r,
		logProbs: [...r.logProbs, t],
		finished: !0
	};
}
function $(e, t) {
	let n = dr(e);
	return {
		tokens: n.map((e) => e.token),
		logProbs: n.map((e) => e.logProb),
		score: t,
		finished: !1,
		attention: n.map((e) => e.attention),
		gate: n.map((e) => e.gate),
		alternatives: n.map((e) => e.alternatives)
	};
}
//#endregion
//#region src/captioner.ts
var mr = 5, hr = class e {
	model;
	constructor(e) {
		this.model = e;
	}
	static async load(t, n, r) {
		let i = await vn.load(t, n, r), { size: a } = i.manifest.preprocess;
		return await (await i.start(await i.encode(new Float32Array(3 * a * a)))).step([1]), new e(i);
	}
	get info() {
		let { parameters: e, decoding: t } = this.model.manifest, n = `${(e / 1e6).toFixed(1)} million parameters, ${(this.model.bytes / 1e6).toFixed(1)} MB, computed in your browser with ONNX Runtime.`;
		return {
			beam: t.beam,
			description: n
		};
	}
	prepare(e) {
		return Kn(e, this.model.manifest.preprocess);
	}
	async caption(e, t = null, n = {}) {
		let { model: r } = this, i = performance.now();
		await n.checkWanted?.();
		let a = await this.prepare(e);
		await n.checkWanted?.();
		let o = performance.now(), s = await r.encode(a.pixels), c = await r.start(s), l = performance.now(), u = async (e) => {
			await n.checkWanted?.(), n.onPartial?.(vr(gr(e, r)), a.frame);
		}, d = {
			...r.manifest.decoding,
			temperature: 0,
			...t
		}, f = yr(d.temperature > 0 ? [await ir(c, d, Math.random, u)] : await rr(c, d, Math.min(mr, d.beam), u), r, a, s.pooled.data);
		return f.seconds = {
			photo: (o - i) / 1e3,
			encoder: (l - o) / 1e3,
			words: (performance.now() - l) / 1e3
		}, f;
	}
};
function gr(e, { manifest: t }) {
	let [n, r] = t.grid, { tokens: i } = t.tokenizer;
	return er(e.tokens, t.tokenizer).map(({ text: t, positions: a }) => {
		let o = Math.exp(a.reduce((t, n) => t + e.logProbs[n], 0)), s = a.flatMap((t) => e.attention[t] ?? []), c = a.flatMap((t) => e.gate[t] ?? []);
		return {
			text: t,
			probability: o,
			confidence: o,
			heatmap: null,
			attention: s.length ? _r(s, n, r) : null,
			gate: c.length ? c.reduce((e, t) => e + t, 0) / c.length : null,
			alternatives: e.alternatives[a[0]].map((e) => ({
				text: tr(i[e.token]),
				probability: e.probability
			}))
		};
	});
}
function _r(e, t, n) {
	return Array.from({ length: t }, (t, r) => Array.from({ length: n }, (t, i) => e.reduce((e, t) => e + t[r * n + i], 0) / e.length));
}
function vr(e) {
	if (!e.length || e.some((e) => !e.attention)) return e;
	let t = d(e.map((e) => e.attention));
	return e.map((e, n) => ({
		...e,
		heatmap: t[n]
	}));
}
function yr(e, t, n, r) {
	let i = t.confidence?.oodScore(r) ?? null, [a, ...o] = e.map((e) => br(e, gr(e, t), t.confidence, i));
	return {
		...a,
		words: vr(a.words),
		ood_score: i,
		frame: n.frame,
		seconds: {
			photo: 0,
			encoder: 0,
			words: 0
		},
		others: o.map(({ text: e, confidence: t }) => ({
			text: e,
			confidence: t
		}))
	};
}
function br(e, t, r, i) {
	let a = e.logProbs.reduce((e, t) => e + t, 0), { finished: o } = e, s = Math.exp(a / Math.max(1, t.length + Number(o))), c = r?.calibrate(t, s, i), l = t.map((e) => e.text).join(" "), u = l.replace(/^[ .]+|[ .]+$/g, ""), d = c?.caption ?? s, f = c?.unsure ?? !1, p = f ? "unsure" : c ? n(d) : "", m = `${Math.round(100 * d)}% confidence${c ? "" : ", uncalibrated"}`;
	return f && i > 1 && (m = "unlike the photos it was trained on"), p && (m = `${p}: ${m}`), o || (m += ", cut at the greatest length"), {
		text: l,
		sentence: u ? f ? `unsure: ${u}.` : `${u[0].toUpperCase()}${u.slice(1)}.` : "",
		confidence: d,
		calibrated: !!c,
		unsure: f,
		level: p,
		certainty: m,
		finished: o,
		words: t.map((e, t) => ({
			...e,
			confidence: c?.words[t] ?? e.probability
		}))
	};
}
//#endregion
//#region src/package.ts
async function xr(e = {}) {
	let t = globalThis.document?.baseURI ?? globalThis.location?.href ?? import.meta.url, n = (e, n) => new URL(String(e ?? new URL(n, import.meta.url)).replace(/\/?$/, "/"), t).href, r = n(e.model, "./model/"), i = n(e.runtime, "./runtime/"), a = {
		model: r,
		runtimeScript: i + {
			script: "ort-1.30.0.js",
			binary: "ort-1.30.0.bin",
			bytes: 3687160
		}.script,
		runtime: i + {
			script: "ort-1.30.0.js",
			binary: "ort-1.30.0.bin",
			bytes: 3687160
		}.binary,
		runtimeBytes: {
			script: "ort-1.30.0.js",
			binary: "ort-1.30.0.bin",
			bytes: 3687160
		}.bytes
	}, o = await hr.load(a, e.onProgress ?? (() => {}), e.threads), s = Promise.resolve();
	return { caption(e, t) {
		let n = s.then(() => o.caption(e, t));
		return s = n.catch(() => {}), n;
	} };
}
//#endregion
export { xr as load };
