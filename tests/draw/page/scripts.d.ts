/** What classic scripts cannot say of themselves: the fields of a record, and what a function keeps. */

interface Capture { [field: string]: any }
interface Uint8ArrayConstructor { fromBase64?(text: string): Uint8Array<ArrayBuffer> }
declare namespace drawBeside { let turn: object }
declare namespace drawThumbs { let turn: object }
declare namespace makeWords { let of: object }
declare namespace makePictures { let of: object }
declare namespace drawPictures { let query: number }
declare namespace drawTop { let timer: ReturnType<typeof setTimeout> }
declare namespace set { let timer: ReturnType<typeof setTimeout>; let step: boolean }
declare namespace reckon { let turn: object }
declare namespace print { let theme: string }
